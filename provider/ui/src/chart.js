// A line chart: an SVG that is stretched to the room there is, with words beside it that keep their size.
import { h, useCallback, useRef, useState } from "./react.js";
import { SIZE, frame, path, ticks, valueTicks } from "./scale.js";
import { number } from "./words.js";

const labels = (values) => {
  const found = values.map(number);
  return new Set(found).size === found.length ? found : values.map((v) => String(+v.toPrecision(8)));
};
const clamp = (value) => Math.min(1, Math.max(0, value));
const dots = (shape, points) => points.map(([x, y]) => `M${shape.x(x)} ${shape.y(y)}h0`).join("");

/**
 * `lines`: {name, points, trend, dots, colour, breaks}; `marks`: {x, text, best}; `star`: a highlighted point;
 * `view`: the stretch of the axis that is shown, null for all; `onZoom` is told another one.
 */
export const Chart = ({ title, lines, axis, marks = [], star = null, wide = false, view = null, onZoom = null, name = null }) => {
  const box = useRef(null);
  const [tip, setTip] = useState(null);
  const [band, setBand] = useState(null);
  const shown = lines.filter((line) => line.points.length);
  const [low, high] = view ?? [axis.low, axis.high];
  const shape = frame(shown, low, high);
  const share = useCallback((event) => {
    const place = box.current.getBoundingClientRect();
    return clamp((event.clientX - place.left) / place.width);
  }, []);
  if (!shown.length) return null;

  const values = valueTicks(shape, wide ? 5 : 4);
  const along = ticks(low / axis.per, high / axis.per, wide ? 8 : 4);
  const told = shown
    .map(({ name: what, points }) => `${what} from ${number(points[0][1])} to ${number(points[points.length - 1][1])}`)
    .join("; ");
  const tell = (event) => {
    const x = low + share(event) * (high - low);
    const near = shown
      .map((line) => ({ ...line, at: line.points.reduce((best, p) => (best && Math.abs(best[0] - x) <= Math.abs(p[0] - x) ? best : p), null) }))
      .filter((line) => line.at[0] >= low && line.at[0] <= high);
    if (!near.length) return setTip(null);
    const first = near.reduce((a, b) => (Math.abs(a.at[0] - x) <= Math.abs(b.at[0] - x) ? a : b));
    setTip({ at: (first.at[0] - low) / (high - low), x: first.at[0], near });
  };
  const down = (event) => {
    if (!onZoom || event.button !== 0 || event.pointerType === "touch") return;
    event.currentTarget.setPointerCapture?.(event.pointerId);
    event.preventDefault();
    setBand([share(event), share(event)]);
  };
  const move = (event) => {
    tell(event);
    if (band) setBand([band[0], share(event)]);
  };
  const up = (event) => {
    if (!band) return;
    const [from, to] = [band[0], share(event)].sort((a, b) => a - b);
    setBand(null);
    if (to - from > 0.01) onZoom([low + from * (high - low), low + to * (high - low)]);
  };
  const place = (x) => (name ? name(x) : axis.key === "step" ? `step ${Math.round(x).toLocaleString("en")}` : `${number(+(x / axis.per).toPrecision(3))} ${axis.unit}`);

  return h("div", { className: `plot${view ? " zoomed" : ""}` },
    h("svg", {
      ref: box, viewBox: `0 0 ${SIZE} ${SIZE}`, preserveAspectRatio: "none", role: "img", "aria-label": `${title}: ${told}`,
      onPointerDown: down, onPointerMove: move, onPointerUp: up,
      onPointerCancel: () => setBand(null), onPointerLeave: () => setTip(null), onDoubleClick: () => onZoom?.(null),
    },
      h("path", { className: "grid", d: values.map((y) => `M0 ${shape.y(y)}H${SIZE}`).join("") }),
      marks.filter((mark) => mark.x >= low && mark.x <= high).map((mark, n) =>
        h("path", { key: `m${n}`, className: `mark${mark.best ? " best" : ""}`, d: `M${shape.x(mark.x)} 0V${SIZE}` }, h("title", null, mark.text))),
      shown.map((line, n) => {
        const colour = `s${(line.colour ?? 0) % 6}`, trend = line.trend?.length > 0;
        return [
          line.points.length > 1 && h("path", { key: `p${n}`, className: `${trend ? "raw" : "line"} ${colour}`, d: path(shape, line.points, line.breaks) }),
          trend && h("path", { key: `t${n}`, className: `line ${colour}`, d: path(shape, line.trend, line.breaks) }),
          (line.dots || line.points.length === 1) && h("path", { key: `d${n}`, className: `dots ${colour}`, d: dots(shape, line.points) }),
        ];
      }),
      star && star[0] >= low && star[0] <= high && h("path", { className: "star", d: dots(shape, [star]) })),
    values.map((value, n) => h("i", { key: `y${n}`, className: "y", style: { bottom: `${100 * shape.share(value)}%` } }, labels(values)[n])),
    along.map((value, n) => h("i", { key: `x${n}`, className: "x", style: { left: `${(100 * (value * axis.per - low)) / (high - low)}%` } }, name ? name(value) : labels(along)[n])),
    h("i", { className: "unit" }, axis.unit),
    band && h("div", { className: "band", style: { left: `${100 * Math.min(...band)}%`, width: `${100 * Math.abs(band[1] - band[0])}%` } }),
    tip && h("div", { className: "hair", style: { left: `${100 * tip.at}%` } }),
    tip && h("div", { className: "tip", style: tip.at > 0.5 ? { right: `${100 * (1 - tip.at)}%` } : { left: `${100 * tip.at}%` } },
      h("b", null, place(tip.x)),
      tip.near.slice(0, 12).map((line) => h("span", { key: line.name, className: `key s${(line.colour ?? 0) % 6}` }, `${line.name} ${number(line.at[1])}`))));
};
