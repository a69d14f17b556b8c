// A page that moves: it asks for its content again when its job has changed, or every few seconds, and takes it over.
// Without this script each page is a still one.
"use strict";

const REST_MS = 250; // between two answers
const FLEET_MS = 5000;
const AGAIN_MS = 5000; // before a stream is opened again that the browser has given up
const LONGEST_MS = 10000; // for an answer
const WAITING = "waiting for the gateway";

const main = document.querySelector("main");
const address = document.body.dataset.changes;
let isAsking = false;
let isOld = false; // what is shown: an answer has to come
let stream = null;

async function renew() {
  isOld = true;
  if (isAsking || document.hidden || isInUse()) return;
  isAsking = true;
  try {
    const answer = await fetch(location.href, { credentials: "same-origin", signal: AbortSignal.timeout(LONGEST_MS) });
    if (answer.redirected || answer.status === 401) {
      location.reload(); // to the form for a token, or to what else lets this browser in
      return;
    }
    if (answer.ok) {
      isOld = false;
      show(await answer.text());
      say("live");
    } else {
      say(WAITING);
    }
  } catch {
    isOld = true;
    say(WAITING);
  } finally {
    setTimeout(() => {
      isAsking = false;
      if (isOld) renew();
      else renewWhatIsIncomplete();
    }, isOld ? AGAIN_MS : REST_MS);
  }
}

function show(text) {
  const fresh = new DOMParser().parseFromString(text, "text/html").querySelector("main");
  if (!fresh || fresh.innerHTML === main.innerHTML) return;
  const focused = placeOf(document.activeElement);
  const scrolled = [...main.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  for (const opened of main.querySelectorAll("details[open][id]")) {
    const same = fresh.querySelector("#" + CSS.escape(opened.id));
    if (same) same.open = true;
  }
  main.replaceChildren(...fresh.childNodes);
  main.querySelectorAll(".scroll").forEach((one, place) => (one.scrollLeft = scrolled[place] ?? 0));
  if (focused) focused()?.focus({ preventScroll: true });
}

// How to find the same element in other content; null: the focus is not in it.
function placeOf(element) {
  if (!element || !main.contains(element)) return null;
  const href = element.getAttribute("href");
  const name = element.tagName.toLowerCase() + (href === null ? "" : `[href="${CSS.escape(href)}"]`);
  const own = partOf(element);
  const alike = () => [...main.querySelectorAll(name)].filter((one) => partOf(one) === own);
  const number = alike().indexOf(element);
  return () => alike()[number];
}

// The table or the picture that an element is in, by its name.
function partOf(element) {
  const part = element.closest("figure, .scroll");
  return part?.querySelector("figcaption")?.textContent ?? part?.getAttribute("aria-label");
}

// A page of jobs that are still being read does not wait for its turn.
function renewWhatIsIncomplete() {
  if (main.querySelector("[data-incomplete]")) setTimeout(renew, REST_MS);
}

function isInUse() {
  return String(getSelection()) !== "" || (main.contains(document.activeElement) && document.activeElement.matches("input, select"));
}

function say(words) {
  const place = document.getElementById("live");
  if (place && place.textContent !== words) place.textContent = words;
}

// Browsers open six connections to a host: a page that nobody sees holds none.
function follow() {
  if (!address) return;
  if (document.hidden) {
    stream?.close();
    stream = null;
  } else if (!stream || stream.readyState === EventSource.CLOSED) {
    stream = new EventSource(address);
    stream.addEventListener("open", renew); // what has changed since the page was made
    stream.addEventListener("changed", renew);
    stream.addEventListener("error", () => {
      say(WAITING);
      renew(); // it finds out whether this browser is still let in
      setTimeout(follow, AGAIN_MS);
    });
  }
}

document.addEventListener("visibilitychange", () => {
  follow();
  if (!document.hidden && isOld) renew();
});
document.addEventListener("selectionchange", () => {
  if (isOld && !isInUse()) renew();
});

follow();
if (document.body.dataset.renews) {
  setInterval(renew, Number(document.body.dataset.renews) || FLEET_MS);
  renewWhatIsIncomplete();
  say("live");
}
