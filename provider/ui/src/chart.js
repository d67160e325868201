// A line chart: an SVG that is stretched to the room there is, with words beside it that keep their size.
import { h, useRef, useState } from "./react.js";
import { SIZE, frame, path, ticks, valueTicks } from "./scale.js";
import { number } from "./words.js";

const labels = (values) => {
  const found = values.map(number);
  return new Set(found).size === found.length ? found : values.map((v) => String(+v.toPrecision(8)));
};
const clamp = (value) => Math.min(1, Math.max(0, value));
const dots = (shape, points) => points.map(([x, y]) => `M${shape.x(x)} ${shape.y(y)}h0`).join("");

/** `line`: {name, points}; `axis`: {unit, low, high}; `star`: a highlighted point; `name`: what a place of the axis is called. */
export const Chart = ({ title, line, axis, star = null, name }) => {
  const box = useRef(null);
  const [tip, setTip] = useState(null);
  const { points } = line, { low, high } = axis;
  if (!points.length) return null;
  const shape = frame(points);
  shape.x = (x) => Math.round((SIZE * (x - low)) / (high - low));
  const values = valueTicks(shape, 4), along = ticks(low, high, 4);
  const told = `${line.name} from ${number(points[0][1])} to ${number(points[points.length - 1][1])}`;
  const tell = (event) => {
    const place = box.current.getBoundingClientRect();
    const x = low + clamp((event.clientX - place.left) / place.width) * (high - low);
    const near = points.reduce((best, p) => (Math.abs(best[0] - x) <= Math.abs(p[0] - x) ? best : p));
    setTip({ at: (near[0] - low) / (high - low), near });
  };
  return h("div", { className: "plot" },
    h("svg", { ref: box, viewBox: `0 0 ${SIZE} ${SIZE}`, preserveAspectRatio: "none", role: "img", "aria-label": `${title}: ${told}`, onPointerMove: tell, onPointerLeave: () => setTip(null) },
      h("path", { className: "grid", d: values.map((y) => `M0 ${shape.y(y)}H${SIZE}`).join("") }),
      points.length > 1 && h("path", { className: "line s0", d: path(shape, points) }),
      h("path", { className: "dots s0", d: dots(shape, points) }),
      star && h("path", { className: "mark", d: `M${shape.x(star[0])} 0V${SIZE}` }, h("title", null, "the champion")),
      star && h("path", { className: "star", d: dots(shape, [star]) })),
    values.map((value, n) => h("i", { key: `y${n}`, className: "y", style: { bottom: `${100 * shape.share(value)}%` } }, labels(values)[n])),
    along.map((value, n) => h("i", { key: `x${n}`, className: "x", style: { left: `${(100 * (value - low)) / (high - low)}%` } }, name(value))),
    h("i", { className: "unit" }, axis.unit),
    tip && h("div", { className: "hair", style: { left: `${100 * tip.at}%` } }),
    tip && h("div", { className: "tip", style: tip.at > 0.5 ? { right: `${100 * (1 - tip.at)}%` } : { left: `${100 * tip.at}%` } },
      h("b", null, name(tip.near[0])), h("span", { className: "key s0" }, `${line.name} ${number(tip.near[1])}`)));
};
