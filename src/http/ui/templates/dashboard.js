"use strict";
// The script of the dashboard. Every page is whole without it; it adds relative times, keys, copies, details in place
// and live rows. It makes no markup of texts: what it shows comes as pages of this service, or as text.
(() => {
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const one = (selector, root = document) => root.querySelector(selector);
const make = (name, attributes, ...inside) => {
  const made = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  made.append(...inside);
  return made;
};

// Announcements for readers who do not see what has changed.
const status = make("p", { class: "skip", role: "status" });
const say = (text) => { status.textContent = ""; requestAnimationFrame(() => { status.textContent = text; }); };

// Relative times, with the exact one as title. A page in the background and a printed one are left alone.
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
const LONGEST = 30 * 86400;
function relative(at) {
  const seconds = Math.round((Date.now() - at) / 1000);
  const length = Math.abs(seconds);
  if (length < 1) return "now";
  if (length > LONGEST) return null;
  const [size, unit] = UNITS.find(([least]) => length >= least);
  return `${seconds < 0 ? "in " : ""}${Math.floor(length / size)} ${unit}${seconds > 0 ? " ago" : ""}`;
}
function showTimes(root = document) {
  if (document.hidden) return;
  for (const time of all("time[datetime]", root)) {
    time.title ||= time.textContent;
    const text = relative(Date.parse(time.dateTime)) ?? time.title;
    if (time.textContent !== text) time.textContent = text;
  }
}
setInterval(showTimes, 30000);
document.addEventListener("visibilitychange", () => showTimes());
addEventListener("beforeprint", () => all("time[title]").forEach((time) => { time.textContent = time.title; }));
addEventListener("afterprint", () => showTimes());

// Pages of this service, parsed. No script of them runs.
class SignedOut extends Error {}
async function ask(url, headers = {}) {
  const answer = await fetch(url, { credentials: "same-origin", headers });
  const isLogin = answer.redirected && new URL(answer.url).pathname.startsWith("/ui/login");
  if (isLogin) throw new SignedOut("You are signed out.");
  if (!answer.ok) throw new Error(`The service answered ${answer.status}.`);
  return answer.text();
}
const parse = (html) => new DOMParser().parseFromString(html, "text/html");
const askPage = async (url, headers) => parse(await ask(url, headers));

// Rows: the first link of a row has the focus, so that Enter opens it.
let last = null;
const rows = () => all("[data-row]").filter((row) => row.checkVisibility ? row.checkVisibility() : row.offsetParent);
function focusRow(row) {
  last = row;
  const link = one("a[href]", row);
  if (!link) row.tabIndex = -1;
  (link ?? row).focus();
  row.scrollIntoView({ block: "nearest" });
}
function go(step) {
  const list = rows();
  const place = list.indexOf(document.activeElement.closest("[data-row]") ?? last);
  const next = place < 0 ? (step > 0 ? 0 : list.length - 1) : Math.min(Math.max(place + step, 0), list.length - 1);
  if (list[next]) focusRow(list[next]);
}
function fold(isOpen) {
  const inList = all("[data-list] details");
  const found = inList.length ? inList : all("main details");
  found.forEach((details) => { details.open = isOpen; });
  if (found.length) say(isOpen ? "Everything is expanded" : "Everything is collapsed");
}

// Keys, which a reader can switch off: speech input types letters, too.
const OFF = "reveille-keys-off";
const stored = (change) => { try { return change(localStorage); } catch { return null; } };
let keysAreOn = stored((store) => store.getItem(OFF)) === null;
const HELP = [
  ["j, ↓", "Next row"], ["k, ↑", "Row before"], ["Enter", "Open the row"], ["e", "Expand all"], ["w", "Collapse all"],
  ["/", "To the filters"], ["?", "These keys"], ["Escape", "Close"],
];
const help = make("dialog", { "aria-labelledby": "keys-title" });
function makeHelp() {
  const list = HELP.flatMap(([key, meaning]) => [make("dt", {}, make("kbd", {}, key)), make("dd", {}, meaning)]);
  const box = make("input", { type: "checkbox" });
  box.checked = keysAreOn;
  box.addEventListener("change", () => {
    keysAreOn = box.checked;
    stored((store) => keysAreOn ? store.removeItem(OFF) : store.setItem(OFF, "1"));
  });
  const [show, close] = ["Keys", "Close"].map((text) => make("button", { type: "button" }, text));
  show.addEventListener("click", () => help.showModal());
  close.addEventListener("click", () => help.close());
  const title = make("h2", { id: "keys-title" }, "Keys");
  help.append(title, make("dl", { class: "keys" }, ...list), make("label", {}, box, "Keys are on"), close);
  (one(".bar .reader") ?? document.body).append(show);
}
const KEYS = {
  j: () => go(1), k: () => go(-1), e: () => fold(true), w: () => fold(false),
  "/": () => one(".filters input:not([type=hidden]), .filters select, main input[type=search]")?.focus(),
  "?": () => help.showModal(),
};
const ROW_KEYS = { ArrowDown: KEYS.j, ArrowUp: KEYS.k };
document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (!keysAreOn || help.open || event.target.closest("input, textarea, select, [contenteditable]")) return;
  const act = KEYS[event.key] ?? (event.target.closest("[data-row]") && ROW_KEYS[event.key]);
  if (!act) return;
  event.preventDefault();
  act();
});

// Copies: the text of a button, an address of this service made whole, or what stands at an address.
async function write(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = make("textarea", { "aria-hidden": "true", class: "skip" }, text);
  document.body.append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  if (!isCopied) throw new Error("The browser does not let it.");
}
async function copy(button) {
  const { copy: given, copyFrom: from } = button.dataset;
  try {
    await write(from ? await ask(from) : given.startsWith("/") ? new URL(given, location.href).href : given);
    say("Copied");
  } catch (error) {
    say(`It was not copied. ${error.message}`);
  }
  button.focus();
}

// The page of a run: details of a row, and the next rows, in place. Where that fails the link leads there.
async function select(link, page) {
  const row = new URL(link.href).searchParams.get("row");
  const detail = one("#detail");
  detail.replaceChildren(...(await askPage(`${page.dataset.rows}/${row}`)).body.childNodes);
  all("[data-row] [aria-current]", page).forEach((other) => other.removeAttribute("aria-current"));
  link.setAttribute("aria-current", "true");
  history.replaceState(null, "", link.href);
  showTimes(detail);
  say(`Details of row ${row}`);
  // below the rows they would not be seen
  if (matchMedia("(max-width: 72rem)").matches) detail.focus();
}
async function more(link, page) {
  const html = await askPage(`${page.dataset.rows}?from=${link.dataset.more}`);
  const row = one("[data-list] [data-row]", html);
  addRows(page, html);
  if (row) focusRow(row);
  say("More rows are shown");
}
function addRows(page, html) {
  const [list, fresh] = [one("[data-list]", page), one("[data-list]", html)];
  list.dataset.next = fresh.dataset.next;
  list.append(...fresh.children);
  one("[data-pager]", page).replaceChildren(...one("[data-pager]", html).childNodes);
  showTimes(list);
}
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy], [data-copy-from]");
  if (button) return void copy(button);
  const link = event.target.closest("[data-rows] [data-list] a[href^='?'], a[data-more]");
  const page = link?.closest("[data-rows]");
  if (!page || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  const work = link.dataset.more ? more(link, page) : select(link, page);
  work.catch(() => { location.href = link.href; });
});

// Live pages: an element with `data-live`, the address of a stream. With `data-rows` the rows of its `data-list` from
// `data-next` on are asked for anew; without, what is in the element.
const EVENTS = ["message", "event", "session", "message_start", "message_chunk", "message_end", "tool_call_start",
  "tool_result", "tool_progress", "state_change", "approval_required", "input_required", "tool_warning", "error",
  "execution_end"];
const HIDDEN = /[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const hex = (c) => c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0");
const visible = (text) => text.replace(HIDDEN, (c) => `⟦U+${hex(c)}⟧`);
// what a page asks for by itself does not keep its session
const BY_ITSELF = { "x-reveille-live": "1" };
const isAtEnd = () => innerHeight + scrollY >= document.documentElement.scrollHeight - 40;

/** Replaces what is in an element, with the folds of it as they were, unless the reader is in it. */
function replaceInside(element, fresh) {
  if (!element || !fresh || element.contains(document.activeElement)) return;
  const open = all("details", element).map((details) => details.open);
  element.replaceChildren(...fresh.childNodes);
  showTimes(element);
  all("details", element).forEach((details, index) => { details.open = open[index] ?? details.open; });
}
/** Replaces the rows from `data-next` on: the focus, the folds and the selected row stay. */
function replaceRows(page, html) {
  const list = one("[data-list]", page);
  if (!list || !one("[data-list]", html) || one("[data-more]", page)) return;
  const old = [...list.children].filter((block) => Number(block.dataset.from) >= Number(list.dataset.next));
  const open = new Map(all("details", list).map((details) => [details.parentNode.dataset.from, details.open]));
  const focused = list.contains(document.activeElement) && document.activeElement.closest("[data-row]")?.id;
  const current = one("[data-row] [aria-current]", list)?.getAttribute("href");
  old.forEach((block) => block.remove());
  addRows(page, html);
  all("details", list).forEach((details) => { details.open = open.get(details.parentNode.dataset.from) ?? details.open; });
  const selected = all("[data-row] > a", list).find((link) => link.getAttribute("href") === current);
  selected?.setAttribute("aria-current", "true");
  const row = focused && !list.contains(document.activeElement) && document.getElementById(focused);
  if (row) one("a[href]", row)?.focus();
}

function follow(page) {
  const [label, saying] = [one("[data-connection]", page), one("[data-saying]", page)];
  const { live, rows: address } = page.dataset;
  const part = address ? "[data-head]" : "[data-live]";
  let [source, timer, later, hiding, retry, said, wait] = [, , , , , "", 1000];
  let [hasEnded, isAsking, isAskedAgain] = [false, false, false];
  const tell = (text) => { if (label && label.textContent !== text) label.textContent = text; };
  const show = (text) => { if (saying) [saying.textContent, saying.hidden] = [visible(text), !text]; };
  const end = (text) => {
    hasEnded = true;
    source?.close();
    [timer, later, hiding, retry].forEach(clearTimeout);
    show("");
    tell(text);
  };
  async function refresh() {
    isAskedAgain = isAsking;
    if (isAsking) return;
    isAsking = true;
    try {
      const next = one("[data-list]", page)?.dataset.next ?? 0;
      const html = await askPage(address ? `${address}?from=${next}` : location.href, BY_ITSELF);
      const sticks = isAtEnd();
      if (address) replaceRows(page, html);
      replaceInside(address ? one(part, page) : page, one(part, html));
      if (sticks) scrollTo(0, document.documentElement.scrollHeight);
    } catch (error) {
      if (error instanceof SignedOut) end("You are signed out. Reload the page to sign in.");
    }
    isAsking = false;
    if (isAskedAgain) soon();
  }
  // what was just told may be recorded a little later
  const soon = () => {
    if (hasEnded) return;
    timer ??= setTimeout(() => { timer = undefined; refresh(); }, 300);
    clearTimeout(later);
    later = setTimeout(refresh, 1500);
  };
  async function on(event) {
    if (!(event instanceof MessageEvent)) return;
    if (event.type === "message_chunk") return show(said = (said + JSON.parse(event.data).text).slice(-2000));
    if (event.type === "tool_progress") {
      const { tool, progress, total, message } = JSON.parse(event.data);
      return show(`${tool}: ${progress}${total ? ` of ${total}` : ""} ${message ?? ""}`.slice(0, 2000));
    }
    if (["message_start", "message_end", "tool_result"].includes(event.type)) show(said = "");
    if (event.type !== "execution_end") return soon();
    end("The run has ended.");
    // one that was on its way does not know of the end
    do await new Promise((done) => setTimeout(done, 300)); while (isAsking);
    await refresh();
  }
  function open() {
    source = new EventSource(live);
    EVENTS.forEach((name) => source.addEventListener(name, on));
    source.addEventListener("open", () => { wait = 1000; tell("Live"); });
    source.addEventListener("error", (event) => {
      if (event instanceof MessageEvent || hasEnded) return;
      tell("The connection was lost. Reconnecting…");
      if (source.readyState !== EventSource.CLOSED) return;
      refresh();
      retry = setTimeout(open, wait);
      wait = Math.min(wait * 2, 30000);
    });
  }
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiding);
    if (hasEnded) return;
    if (document.hidden) {
      hiding = setTimeout(() => {
        clearTimeout(retry);
        source.close();
        source = undefined;
        tell("Paused while the page is in the background.");
      }, 60000);
    } else if (!source) { open(); refresh(); }
  });
  tell("Connecting…");
  open();
}

document.body.append(status, help);
makeHelp();
showTimes();
all("[data-copy], [data-copy-from]").forEach((button) => { button.hidden = false; });
all("[data-live]").forEach(follow);
})();
