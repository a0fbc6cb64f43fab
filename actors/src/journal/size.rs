//! How many bytes a value takes, near enough for a bound: counted through serde without writing anything.

use std::fmt;

use serde::{Serialize, ser};

/// About the bytes of `value`, without the room that its containers keep in reserve.
pub(super) fn bytes_of(value: &impl Serialize) -> usize {
    let mut counter = Counter(0);
    // Counting fails only if the value's own Serialize does; what was counted until then is the answer.
    let _ = value.serialize(&mut counter);
    counter.0
}

struct Counter(usize);

#[derive(Debug)]
struct Failed;

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the value cannot be serialized")
    }
}

impl std::error::Error for Failed {}

impl ser::Error for Failed {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

type Done = Result<(), Failed>;

macro_rules! fixed {
    ($($name:ident: $kind:ty),* $(,)?) => {
        $(fn $name(self, _: $kind) -> Done {
            self.0 += size_of::<$kind>();
            Ok(())
        })*
    };
}

impl ser::Serializer for &mut Counter {
    type Ok = ();
    type Error = Failed;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    fixed! {
        serialize_bool: bool, serialize_char: char,
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64, serialize_i128: i128,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64, serialize_u128: u128,
        serialize_f32: f32, serialize_f64: f64,
    }

    fn serialize_str(self, text: &str) -> Done {
        self.0 += 24 + text.len();
        Ok(())
    }

    fn serialize_bytes(self, bytes: &[u8]) -> Done {
        self.0 += 24 + bytes.len();
        Ok(())
    }

    fn serialize_none(self) -> Done {
        self.0 += 1;
        Ok(())
    }

    fn serialize_some<T: ?Sized + Serialize>(self, value: &T) -> Done {
        self.0 += 1;
        value.serialize(self)
    }

    fn serialize_unit(self) -> Done {
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Done {
        Ok(())
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, _: &'static str) -> Done {
        self.0 += 8;
        Ok(())
    }

    fn serialize_newtype_struct<T: ?Sized + Serialize>(self, _: &'static str, value: &T) -> Done {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: ?Sized + Serialize>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        value: &T,
    ) -> Done {
        self.0 += 8;
        value.serialize(self)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self, Failed> {
        self.0 += 24;
        Ok(self)
    }

    fn serialize_tuple(self, _: usize) -> Result<Self, Failed> {
        Ok(self)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self, Failed> {
        Ok(self)
    }

    fn serialize_tuple_variant(self, _: &'static str, _: u32, _: &'static str, _: usize) -> Result<Self, Failed> {
        self.0 += 8;
        Ok(self)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self, Failed> {
        self.0 += 24;
        Ok(self)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self, Failed> {
        Ok(self)
    }

    fn serialize_struct_variant(self, _: &'static str, _: u32, _: &'static str, _: usize) -> Result<Self, Failed> {
        self.0 += 8;
        Ok(self)
    }
}

macro_rules! parts {
    ($($kind:ident: $name:ident),* $(,)?) => {
        $(impl ser::$kind for &mut Counter {
            type Ok = ();
            type Error = Failed;

            fn $name<T: ?Sized + Serialize>(&mut self, value: &T) -> Done {
                value.serialize(&mut **self)
            }

            fn end(self) -> Done {
                Ok(())
            }
        })*
    };
}

parts! {
    SerializeSeq: serialize_element,
    SerializeTuple: serialize_element,
    SerializeTupleStruct: serialize_field,
    SerializeTupleVariant: serialize_field,
}

macro_rules! named_parts {
    ($($kind:ident),*) => {
        $(impl ser::$kind for &mut Counter {
            type Ok = ();
            type Error = Failed;

            fn serialize_field<T: ?Sized + Serialize>(&mut self, _: &'static str, value: &T) -> Done {
                value.serialize(&mut **self)
            }

            fn end(self) -> Done {
                Ok(())
            }
        })*
    };
}

named_parts!(SerializeStruct, SerializeStructVariant);

impl ser::SerializeMap for &mut Counter {
    type Ok = ();
    type Error = Failed;

    fn serialize_key<T: ?Sized + Serialize>(&mut self, key: &T) -> Done {
        key.serialize(&mut **self)
    }

    fn serialize_value<T: ?Sized + Serialize>(&mut self, value: &T) -> Done {
        value.serialize(&mut **self)
    }

    fn end(self) -> Done {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn sizes_grow_with_the_value() {
        assert_eq!(bytes_of(&7_u64), 8);
        assert_eq!(bytes_of(&"x".repeat(1_000)), 1_024);
        assert_eq!(bytes_of(&vec![0_u32; 100]), 424);
        assert_eq!(bytes_of(&Some((1_u8, 2_u16))), 4);
        // A key that is no text, which JSON would refuse.
        assert_eq!(bytes_of(&BTreeMap::from([((1_u32, 2_u32), 3_u64)])), 40);
    }
}
