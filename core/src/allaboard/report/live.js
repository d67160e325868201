// Of a page in a frame of Airflow: it is asked for again while something goes on, and only what is different
// changes, so that the reader keeps the place, the zoom, what is open and what is selected. Colours and the zone of
// times are those of the pages around it.
(() => {
  "use strict";
  const main = document.querySelector("main"), root = document.documentElement;
  const host = (() => {
    try {
      return parent === window ? null : parent.document.documentElement;
    } catch {
      return null; // a page of somebody else
    }
  })();
  const dress = () => { root.dataset.theme = host.classList.contains("dark") ? "dark" : "light"; };
  if (host) {
    dress();
    new MutationObserver(dress).observe(host, { attributes: true, attributeFilter: ["class"] });
  }

  // --- times, in the zone that is chosen in Airflow's pages, which keep it there; else the browser's
  const written = new WeakMap();
  const zone = () => {
    try {
      const chosen = JSON.parse(localStorage.getItem("timezone"));
      new Intl.DateTimeFormat("en", { timeZone: chosen ?? undefined });
      if (chosen) return chosen;
    } catch {
      // There is no store, or no such zone.
    }
    return Intl.DateTimeFormat().resolvedOptions().timeZone;
  };
  const inZone = (text) => text.replace(/\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z/g, (found) => {
    const timeZone = zone(), two = { month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" };
    const parts = new Intl.DateTimeFormat("en", { timeZone, year: "numeric", ...two, hourCycle: "h23" }).formatToParts(Date.parse(found));
    const of = Object.fromEntries(parts.map(({ type, value }) => [type, value]));
    return `${of.year}-${of.month}-${of.day} ${of.hour}:${of.minute}:${of.second} (${timeZone})`;
  });
  const localize = (tree) => {
    const texts = document.createTreeWalker(tree, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const node = texts.currentNode;
      if (node.parentNode.closest("pre, code, q")) continue; // as somebody else wrote it
      const text = written.get(node) ?? node.nodeValue, shown = inZone(text);
      if (shown === text && !written.has(node)) continue;
      written.set(node, text);
      node.nodeValue = shown;
    }
  };
  localize(main);
  addEventListener("storage", () => localize(main));

  // --- what is different
  const OF_THE_READER = new Set(["open", "tabindex"]);
  const isOurs = (node) => node.nodeType === 1 && "ours" in node.dataset;
  const key = (node) => (node.nodeType === 1 && (node.dataset.part || node.id)) || node.nodeName;
  const change = (old, fresh) => {
    if (old.nodeType !== 1) {
      if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
      if (written.has(fresh)) written.set(old, written.get(fresh));
      else written.delete(old);
    } else if (old.classList.contains("plot")) {
      if (charts.served(old) !== fresh.outerHTML) old.replaceWith(fresh);
    } else {
      for (const { name, value } of [...fresh.attributes])
        if (!OF_THE_READER.has(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
      for (const { name } of [...old.attributes])
        if (!OF_THE_READER.has(name) && !fresh.hasAttribute(name)) old.removeAttribute(name);
      changeInside(old, fresh);
    }
  };
  const changeInside = (old, fresh) => {
    let at = old.firstChild;
    for (const next of [...fresh.childNodes]) {
      while (at && isOurs(at)) at = at.nextSibling;
      let same = at;
      while (same && (isOurs(same) || key(same) !== key(next))) same = same.nextSibling;
      if (!same) {
        old.insertBefore(next, at);
        continue;
      }
      if (same === at) at = at.nextSibling;
      else old.insertBefore(same, at);
      change(same, next);
    }
    while (at) {
      const gone = at;
      at = at.nextSibling;
      if (!isOurs(gone)) gone.remove();
    }
  };

  // --- again and again
  const trouble = document.createElement("p");
  trouble.className = "fine warning";
  trouble.dataset.ours = "";
  trouble.setAttribute("role", "status");
  const WORDS = { 401: "you are signed out; sign in again", 403: "you may not see the task instances of this DAG", 404: "there is no such task instance" };
  const ask = async () => {
    const how = { headers: { Accept: "application/json" }, credentials: "same-origin" };
    const answer = await fetch(main.dataset.live, how);
    if (!answer.ok) throw new Error(WORDS[answer.status] ?? `the server answered ${answer.status}`);
    return answer.json();
  };
  const look = async () => {
    if (document.hidden || charts.isDragged()) return again(1);
    try {
      const { title, main: drawn, every } = await ask();
      if (charts.isDragged()) return again(1);
      const fresh = new DOMParser().parseFromString(`<main>${drawn}</main>`, "text/html").querySelector("main");
      localize(fresh);
      changeInside(main, fresh);
      charts.look();
      document.title = title;
      trouble.remove();
      again(every);
    } catch (error) {
      trouble.textContent = `It could not be read again: ${error.message}.`;
      main.prepend(trouble);
      again(15);
    }
  };
  const again = (seconds) => { if (seconds) setTimeout(look, 1000 * seconds); };
  again(Number(main.dataset.every));
})();
