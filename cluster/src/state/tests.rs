//! What `apply` must hold.
