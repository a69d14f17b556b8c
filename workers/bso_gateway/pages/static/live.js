// Follows a job: whenever its log has grown, the page's content is asked for again. Without it the page is a still one.
"use strict";

const LEAST_MS = 700;
const FLEET_MS = 5000;
const main = document.querySelector("main");
let isAsking = false;
let isOld = false;

async function renew() {
  if (isAsking || document.hidden) {
    isOld = true;
    return;
  }
  isAsking = true;
  isOld = false;
  try {
    const answer = await fetch(location.href, { credentials: "same-origin" });
    if (answer.redirected) {
      location.reload();
      return;
    }
    if (answer.ok) {
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.querySelector("main");
      if (fresh && fresh.innerHTML !== main.innerHTML && !isInUse()) {
        keepOpen(fresh);
        main.replaceChildren(...fresh.childNodes);
      }
      say("live");
    }
  } catch {
    say("waiting for the gateway");
  } finally {
    setTimeout(() => {
      isAsking = false;
      if (isOld) renew();
    }, LEAST_MS);
  }
}

function isInUse() {
  const selected = String(getSelection());
  return selected !== "" || (main.contains(document.activeElement) && document.activeElement.matches("input"));
}

function keepOpen(fresh) {
  for (const opened of main.querySelectorAll("details[open][id]")) {
    const same = fresh.querySelector("#" + CSS.escape(opened.id));
    if (same) same.open = true;
  }
}

function say(words) {
  const place = document.getElementById("live");
  if (place) place.textContent = words;
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && isOld) renew();
});

const address = document.body.dataset.changes;
if (address) {
  const stream = new EventSource(address);
  stream.addEventListener("changed", renew);
  stream.addEventListener("open", () => say("live"));
  stream.addEventListener("error", () => say("waiting for the gateway"));
} else if (document.body.dataset.renews) {
  setInterval(renew, FLEET_MS);
  say("live");
}
