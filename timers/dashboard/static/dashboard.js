"use strict";
// What a page does by itself: it reads its live part again when there is news and somebody looks, counts down, and counts the chosen timers.
(() => {
  const TICK_MS = 3000;
  const live = () => document.querySelector("#live[hx-get]");
  const say = (text = "Live: shows what is new while you look.") => {
    const state = document.getElementById("live-state");
    if (state && state.textContent !== text) state.textContent = text;
  };
  const isWriting = () => /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName);
  const boxes = () => [...document.querySelectorAll("input[name=timer]")];

  // Server time: a page carries the time at which it was made.
  let ahead = 0;
  const setClock = () => {
    const made = document.querySelector("[data-now]");
    if (made) ahead = Number(made.dataset.now) - Date.now();
  };

  const UNITS = [["d", 86400000], ["h", 3600000], ["m", 60000], ["s", 1000]];
  function duration(ms) {
    const whole = Math.floor(Math.abs(ms));
    if (whole < 1000) return `${whole} ms`;
    const i = UNITS.findIndex(([, size]) => whole >= size);
    const [unit, size] = UNITS[i];
    const large = Math.floor(whole / size);
    if (unit === "s") return `${large} s`;
    const [smallUnit, smallSize] = UNITS[i + 1];
    const small = Math.floor((whole % size) / smallSize);
    return small ? `${large} ${unit} ${small} ${smallUnit}` : `${large} ${unit}`;
  }
  function countDown() {
    const now = Date.now() + ahead;
    for (const time of document.querySelectorAll("time[data-ms]")) {
      const left = Number(time.dataset.ms) - now;
      const rounded = duration(left);
      time.textContent = Math.abs(left) < 1000 ? "now" : left > 0 ? `in ${rounded}` : time.dataset.due ? `due for ${rounded}` : `${rounded} ago`;
    }
  }

  // A hidden page asks for nothing. A page in which somebody is choosing or writing stays as it is.
  const isBusy = () => {
    const part = live();
    return part.querySelector("input:checked, details[open]") !== null || (part.contains(document.activeElement) && isWriting());
  };
  let heardAt = Date.now();
  function tick() {
    if (!live() || document.visibilityState !== "visible") return;
    if (isBusy()) return say("Live view waits while you choose.");
    htmx.trigger(live(), "tick");
  }
  // The service tells the page when there is something new. A page that cannot hear it reads again by itself; a hidden page does neither.
  let news = null;
  function listen() {
    const wanted = live() !== null && document.visibilityState === "visible";
    if (news && (!wanted || news.readyState === EventSource.CLOSED)) {
      news.close();
      news = null;
    }
    if (!wanted || news) return;
    news = new EventSource("/ui/live");
    news.onmessage = tick;
  }
  setInterval(() => {
    listen();
    if (news?.readyState !== EventSource.OPEN) tick();
  }, TICK_MS);
  setInterval(countDown, 1000);
  document.addEventListener("visibilitychange", () => {
    listen();
    tick();
  });
  // If the answer is not a page, the old one stays, with a note of its age.
  function unheard(isUnheard) {
    const banner = document.getElementById("unheard");
    if (isUnheard && banner.hidden) banner.querySelector("span").textContent = new Date(heardAt).toLocaleTimeString();
    banner.hidden = !isUnheard;
  }
  document.addEventListener("htmx:error", () => unheard(true));
  document.addEventListener("htmx:after:request", (event) => {
    const { sourceElement, hx, text } = event.detail.ctx;
    if (sourceElement.id !== "live" || hx.redirect || text.includes('id="live"')) return;
    event.preventDefault();
    unheard(true);
  });
  document.addEventListener("htmx:after:swap", () => {
    heardAt = Date.now();
    unheard(false);
    setClock();
    countDown();
    choose();
    say();
  });

  // Chosen timers, and words to type before an action that cannot be undone.
  function choose() {
    const bar = document.querySelector(".chosen");
    if (!bar) return;
    const all = boxes();
    const n = all.filter((box) => box.checked).length;
    bar.hidden = n === 0;
    bar.querySelector("[data-count]").textContent = `${n} chosen`;
    const chooser = document.getElementById("choose-all");
    if (!chooser) return;
    chooser.checked = n > 0 && n === all.length;
    chooser.indeterminate = n > 0 && n < all.length;
  }
  document.addEventListener("change", (event) => {
    if (event.target.id === "choose-all") for (const box of boxes()) box.checked = event.target.checked;
    choose();
  });
  function checkWords() {
    for (const input of document.querySelectorAll("input[data-words]")) {
      input.form.querySelector("button").disabled = input.value.trim() !== input.dataset.words;
    }
  }
  document.addEventListener("input", checkWords);
  document.addEventListener("keydown", (event) => {
    const search = document.querySelector("input[type=search]");
    if (event.key === "/" && !isWriting() && search) {
      event.preventDefault();
      search.focus();
    }
  });
  setClock();
  checkWords();
  choose();
  listen();
  if (live()) say();
})();
