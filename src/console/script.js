// What a browser adds to pages that work without it: they follow the node, and keys move through them.
"use strict";

const live = document.querySelector("header .live");
const age = live.querySelector(".age");
let held = false;
let stream = null;
let heard = Date.now();
let waiting = null;

// --- following the node ------------------------------------------------------------------------------------------

// Changes `old` into `fresh` in place, so that focus, selection, scrolling and what is open survive.
function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
    old.replaceWith(fresh.cloneNode(true));
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  const open = old.nodeName === "DETAILS" && old.dataset.keep === fresh.dataset.keep ? old.open : null;
  for (const name of old.getAttributeNames()) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const name of fresh.getAttributeNames()) {
    const value = fresh.getAttribute(name);
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (open !== null) old.open = open;
  // What somebody types or drags is theirs until they leave it; in a form that acts, until they send it.
  const theirs = old === document.activeElement || (old.form && old.form.method === "post");
  if (old.nodeName === "INPUT" && !theirs) old.value = fresh.value;
  if (old.nodeName === "INPUT" || old.nodeName === "SELECT") return;
  children(old, fresh);
}

function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.dataset.row || node.id || null : null;
}

function children(old, fresh) {
  // Rows that moved are moved, not rewritten.
  const keyed = new Map();
  for (const child of old.childNodes) if (keyOf(child)) keyed.set(keyOf(child), child);
  let place = old.firstChild;
  for (const next of Array.from(fresh.childNodes)) {
    const known = keyed.get(keyOf(next));
    if (known && known !== place) old.insertBefore(known, place);
    if (known) {
      morph(known, next);
      place = known.nextSibling;
    } else if (place && !(keyOf(place) && keyed.has(keyOf(place)) && keyOf(next))) {
      const after = place.nextSibling;
      morph(place, next);
      place = after;
    } else {
      old.insertBefore(next.cloneNode(true), place);
    }
  }
  while (place) {
    const after = place.nextSibling;
    place.remove();
    place = after;
  }
}

function show(text) {
  const fresh = document.createElement("div");
  fresh.innerHTML = text;
  fresh.id = "live";
  const at = document.querySelector("tr.at");
  const row = at && at.dataset.row;
  morph(document.getElementById("live"), fresh);
  if (row) mark(Array.from(rows()).find((it) => it.dataset.row === row));
  document.querySelectorAll(".time input[type=range]").forEach(slide);
}

function say(state, text) {
  live.className = "live " + state;
  age.textContent = text;
}

function follow() {
  if (stream) stream.close();
  // What came of a form stands still until it was read.
  if (document.body.dataset.still !== undefined) return;
  stream = new EventSource("/live" + location.pathname + location.search);
  stream.addEventListener("page", (event) => {
    heard = Date.now();
    const text = JSON.parse(event.data);
    if (held) waiting = text;
    else show(text);
  });
  stream.addEventListener("same", () => { heard = Date.now(); });
}

function hold(on) {
  held = on;
  if (!held && waiting !== null) show(waiting);
  waiting = null;
  tick();
}

function tick() {
  const silent = Math.round((Date.now() - heard) / 1000);
  if (document.body.dataset.still !== undefined) say("held", "still");
  else if (held) say("held", "held");
  else if (silent > 4) say("off", "last heard " + silent + " s ago");
  else say("on", "live");
}

// A page of the past stands still by itself.
follow();
setInterval(tick, 1000);
document.addEventListener("visibilitychange", () => {
  // Nobody looks at a hidden page, so it costs the node nothing.
  if (document.hidden) { if (stream) stream.close(); }
  else follow();
});

// --- going elsewhere without losing the place -----------------------------------------------------------------------

async function go(address, push) {
  try {
    const answer = await fetch(address, { headers: { Accept: "text/html" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("live");
    if (!fresh) throw new Error("no page");
    if (push) history.pushState(null, "", answer.redirected ? answer.url : address);
    document.title = page.title;
    document.body.dataset.path = page.body.dataset.path;
    delete document.body.dataset.still;
    document.querySelector("header nav").replaceWith(page.querySelector("header nav"));
    hold(false);
    heard = Date.now();
    show(fresh.innerHTML);
    follow();
  } catch (error) {
    location.href = address;
  }
}

window.addEventListener("popstate", () => go(location.href, false));
document.addEventListener("click", (event) => {
  const link = event.target.closest("a");
  const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
  if (!link || !plain) return;
  // Links in pictures have their address in another place.
  const to = new URL(link.getAttribute("href"), location.href);
  if (to.origin !== location.origin || link.hasAttribute("download") || to.hash) return;
  event.preventDefault();
  const far = to.pathname !== location.pathname;
  go(to.href, true).then(() => { if (far) window.scrollTo(0, 0); });
});

// --- filters and the slider -------------------------------------------------------------------------------------------

function submit(form) {
  const pairs = Array.from(new FormData(form)).filter(([, value]) => value !== "");
  const query = new URLSearchParams(pairs).toString();
  go((form.getAttribute("action") || location.pathname) + (query ? "?" + query : ""), true);
}

document.addEventListener("submit", (event) => {
  if (event.target.method !== "get") return;
  event.preventDefault();
  submit(event.target);
});

let typing = 0;
document.addEventListener("input", (event) => {
  const input = event.target;
  clearTimeout(typing);
  if (input.type === "range") {
    slide(input);
    typing = setTimeout(() => submit(input.form), 120);
  } else if (input.form && input.form.matches(".search")) {
    typing = setTimeout(() => submit(input.form), input.type === "search" ? 250 : 0);
  }
});

function slide(input) {
  const output = input.form.querySelector("output");
  if (input === document.activeElement) output.firstChild.nodeValue = "event " + Number(input.value).toLocaleString("en");
}

// --- keys -------------------------------------------------------------------------------------------------------------

const dialog = document.getElementById("keys");
document.querySelector(".help").addEventListener("click", () => dialog.showModal());

function rows() {
  return document.querySelectorAll("tr[data-row]");
}

function mark(row) {
  document.querySelectorAll("tr.at").forEach((it) => it.classList.remove("at"));
  if (row) row.classList.add("at");
}

function move(by) {
  const all = Array.from(rows());
  const at = all.findIndex((row) => row.classList.contains("at"));
  const next = all[Math.max(0, Math.min(all.length - 1, at + by))];
  mark(next);
  if (next) next.scrollIntoView({ block: "nearest" });
}

function node(by) {
  const all = Array.from(document.querySelectorAll(".nodes a"));
  const at = all.findIndex((it) => it.hasAttribute("aria-current"));
  if (at >= 0) all[(at + by + all.length) % all.length].click();
}

let leader = 0;
document.addEventListener("keydown", (event) => {
  const writing = event.target.matches("input:not([type=range]), select, textarea");
  if (event.key === "Escape" && writing) event.target.blur();
  if (writing || event.metaKey || event.ctrlKey || event.altKey || dialog.open) return;
  if (Date.now() - leader < 1500) {
    leader = 0;
    const page = document.querySelector(`header nav a[data-key="${CSS.escape(event.key)}"]`);
    if (page) page.click();
    return;
  }
  const link = document.querySelector(`main a[data-key="${CSS.escape(event.key)}"]`);
  const row = document.querySelector("tr.at");
  switch (event.key) {
    case "g": leader = Date.now(); break;
    case "?": dialog.showModal(); break;
    case "/": {
      const search = document.querySelector("input[type=search]");
      if (search) search.select();
      break;
    }
    case "j": case "ArrowDown": if (event.key === "j" || row) move(1); else return; break;
    case "k": case "ArrowUp": if (event.key === "k" || row) move(-1); else return; break;
    case "Enter": {
      if (!row || event.target.closest("a, summary, button")) return;
      const target = row.querySelector("a:not(.toggle)");
      if (target) target.click();
      break;
    }
    case "ArrowRight": case "ArrowLeft": {
      const toggle = row && row.querySelector("a.toggle");
      if (!toggle || (toggle.getAttribute("aria-expanded") === "true") === (event.key === "ArrowRight")) return;
      toggle.click();
      break;
    }
    case "f": {
      const trace = row && row.querySelector("a.trace");
      if (!trace) return;
      trace.click();
      break;
    }
    case "n": node(1); break;
    case "p": node(-1); break;
    case " ": if (event.target.closest("a, summary, button")) return; hold(!held); break;
    default: if (link) link.click(); else return;
  }
  event.preventDefault();
});
