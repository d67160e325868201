// The page works without this. It adds values under the pointer, or by the arrow keys, and zoom: drag over a
// stretch of a chart.
const charts = (() => {
  "use strict";
  const SIZE = 10000;
  const short = (v) => {
    const a = Math.abs(v);
    if (v && a < 1e-3) return v.toExponential(1).replace(".0e", "e");
    for (const [limit, by, letter] of [[1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"]])
      if (a >= limit) return String(+(v / by).toPrecision(6)) + letter;
    return String(+v.toPrecision(4));
  };
  const labels = (values) => {
    const found = values.map(short);
    return new Set(found).size === found.length ? found : values.map((v) => String(+v.toPrecision(8)));
  };
  const ticks = (low, high, about) => {
    let step = 10 ** Math.floor(Math.log10((high - low) / about));
    for (const f of [1, 2, 5, 10]) if ((high - low) / (step * f) <= about) { step *= f; break; }
    const found = [];
    for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) found.push(n * step);
    return found;
  };
  const points = (path) => {
    const found = [];
    for (const part of path.getAttribute("d").replace(/h0/g, "").split("M")) {
      const n = (part.match(/-?\d+/g) || []).map(Number);
      let x = 0, y = 0;
      for (let i = 0; i + 1 < n.length; i += 2) {
        x = i ? x + n[i] : n[0];
        y = i ? y + n[i + 1] : n[1];
        found.push([x, y]);
      }
    }
    return found;
  };

  class Plot {
    constructor(box) {
      this.box = box;
      this.served = box.outerHTML;
      this.svg = box.querySelector("svg");
      this.axis = box.dataset.axis;
      this.per = Number(box.dataset.per);
      [this.x0, this.x1] = box.dataset.x.split(" ").map(Number);
      [this.y0, this.y1] = box.dataset.y.split(" ").map(Number);
      this.log = "log" in box.dataset;
      this.grid = this.svg.querySelector(".grid");
      this.first = this.grid.getAttribute("d");
      this.view = [0, 0, SIZE, SIZE];
      this.words = [...box.querySelectorAll("i.x, i.y")];
      this.about = [this.words.filter((w) => w.className === "x").length > 5 ? 8 : 4, 4];
    }
    get series() {
      if (!this.found)
        this.found = [...this.svg.querySelectorAll("[data-name]")].map((path) => ({
          name: path.dataset.name, colour: path.classList[1], points: points(path),
        }));
      return this.found;
    }
    x(at) { return this.x0 + (at / SIZE) * (this.x1 - this.x0); }
    y(at) {
      const share = 1 - at / SIZE;
      return this.log ? this.y0 * (this.y1 / this.y0) ** share : this.y0 + share * (this.y1 - this.y0);
    }
    place(y) {
      const share = this.log ? Math.log(y / this.y0) / Math.log(this.y1 / this.y0) : (y - this.y0) / (this.y1 - this.y0);
      return SIZE * (1 - share);
    }
    zoom(low, high) {
      const whole = low === null;
      let view = [0, 0, SIZE, SIZE];
      if (!whole) {
        const from = ((low - this.x0) / (this.x1 - this.x0)) * SIZE, to = ((high - this.x0) / (this.x1 - this.x0)) * SIZE;
        const ys = this.series.flatMap((s) => s.points).filter((p) => p[0] >= from && p[0] <= to).map((p) => p[1]);
        let top = 0, bottom = SIZE;
        if (ys.length) {
          top = ys.reduce((a, b) => Math.min(a, b));
          bottom = ys.reduce((a, b) => Math.max(a, b));
          const room = (bottom - top) * 0.08 || 200;
          top -= room;
          bottom += room;
        }
        view = [from, top, to - from, bottom - top];
      }
      this.view = view;
      this.svg.setAttribute("viewBox", view.join(" "));
      this.box.classList.toggle("zoomed", !whole);
      this.box.querySelectorAll("i.x, i.y").forEach((word) => word.remove());
      if (whole) {
        this.grid.setAttribute("d", this.first);
        this.box.append(...this.words);
        return;
      }
      const word = (kind, text, side, share) => {
        const made = document.createElement("i");
        made.className = kind;
        made.textContent = text;
        made.style[side] = 100 * share + "%";
        this.box.append(made);
      };
      const xs = ticks(low / this.per, high / this.per, this.about[0]);
      labels(xs).forEach((text, n) => word("x", text, "left", (xs[n] * this.per - low) / (high - low)));
      const bottom = this.y(view[1] + view[3]), top = this.y(view[1]);
      const ys = ticks(bottom, top, this.about[1]).filter((y) => !this.log || y > 0);
      const at = ys.map((y) => this.place(y));
      labels(ys).forEach((text, n) => word("y", text, "bottom", 1 - (at[n] - view[1]) / view[3]));
      this.grid.setAttribute("d", at.map((y) => `M${view[0]} ${y}h${view[2]}`).join(""));
    }
    tell(share) {
      const at = this.view[0] + share * this.view[2];
      const near = this.series.map((s) => {
        let best = null;
        for (const p of s.points) if (!best || Math.abs(p[0] - at) < Math.abs(best[0] - at)) best = p;
        return { ...s, at: best };
      }).filter((s) => s.at);
      if (!near.length) return;
      const first = near.reduce((a, b) => (Math.abs(a.at[0] - at) <= Math.abs(b.at[0] - at) ? a : b));
      const shown = (first.at[0] - this.view[0]) / this.view[2];
      line.style.left = 100 * shown + "%";
      tip.replaceChildren();
      const unit = this.axis === "step" ? "step " : "";
      const x = this.x(first.at[0]) / this.per;
      const head = document.createElement("b");
      head.textContent = this.axis === "step" ? unit + Math.round(x).toLocaleString("en") : short(+x.toPrecision(3)) + " " + this.box.querySelector(".unit").textContent.split(" ")[0];
      tip.append(head);
      for (const s of near.slice(0, 12)) {
        const row = document.createElement("span");
        row.className = "key " + s.colour;
        row.textContent = `${s.name} ${+this.y(s.at[1]).toPrecision(4)}`;
        tip.append(row);
      }
      tip.style.left = tip.style.right = "auto";
      if (shown > 0.5) tip.style.right = 100 * (1 - shown) + "%";
      else tip.style.left = 100 * shown + "%";
      if (tip.parentNode !== this.box) this.box.append(line, tip);
    }
  }

  const make = (kind, name = "div") => {
    const made = document.createElement(name);
    made.className = kind;
    made.dataset.ours = ""; // no part of the page that the server drew
    return made;
  };
  const tip = make("tip"), line = make("hair"), band = make("band"), back = make("", "button"), hint = make("fine hint", "span");
  const plots = new Map(), views = { step: null, time: null };
  let dragged = false;
  const zoom = (axis, low, high) => {
    views[axis] = low === null ? null : [low, high];
    for (const plot of plots.values()) if (plot.axis === axis) plot.zoom(low, high);
    back.hidden = !views.step && !views.time;
  };
  const whole = () => { zoom("step", null); zoom("time", null); };
  back.type = "button";
  back.textContent = "Show all";
  back.hidden = true;
  back.addEventListener("click", whole);
  hint.textContent = "Drag over a chart to zoom.";

  const adopt = (plot) => {
    plots.set(plot.box, plot);
    if (views[plot.axis]) plot.zoom(...views[plot.axis]);
    plot.svg.setAttribute("tabindex", "0");
    const share = (event) => {
      const box = plot.svg.getBoundingClientRect();
      return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    };
    let from = null;
    plot.svg.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || event.pointerType === "touch") return;
      from = share(event);
      dragged = true;
      plot.svg.setPointerCapture(event.pointerId);
      event.preventDefault();
    });
    plot.svg.addEventListener("pointermove", (event) => {
      const at = share(event);
      plot.tell(at);
      if (from === null) return;
      band.style.left = 100 * Math.min(from, at) + "%";
      band.style.width = 100 * Math.abs(at - from) + "%";
      if (band.parentNode !== plot.box) plot.box.append(band);
    });
    plot.svg.addEventListener("pointerup", (event) => {
      const at = share(event), begun = from;
      from = null;
      dragged = false;
      band.remove();
      if (begun === null || Math.abs(at - begun) < 0.01) return;
      const ends = [begun, at].sort((a, b) => a - b).map((s) => plot.x(plot.view[0] + s * plot.view[2]));
      zoom(plot.axis, ends[0], ends[1]);
    });
    const leave = () => { tip.remove(); line.remove(); };
    plot.svg.addEventListener("pointercancel", () => { from = null; dragged = false; band.remove(); });
    plot.svg.addEventListener("pointerleave", leave);
    plot.svg.addEventListener("blur", leave);
    plot.svg.addEventListener("dblclick", () => zoom(plot.axis, null));
    let reading = 0.5;
    plot.svg.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { leave(); whole(); }
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      event.preventDefault();
      reading = Math.min(1, Math.max(0, reading + (event.key === "ArrowLeft" ? -0.02 : 0.02)));
      plot.tell(reading);
    });
  };
  /** Takes over the charts that are new in the document, and lets go of those that left it. */
  const look = () => {
    for (const box of plots.keys()) if (!box.isConnected) plots.delete(box);
    for (const box of document.querySelectorAll(".plot")) if (!plots.has(box)) adopt(new Plot(box));
    const tools = document.querySelector(".tools");
    if (tools && hint.parentNode !== tools) tools.append(hint, back);
  };
  look();
  return { look, isDragged: () => dragged, served: (box) => plots.get(box)?.served };
})();
