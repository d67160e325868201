// Where values lie in a picture. Values in, values out.
export const SIZE = 10000;

export const ticks = (low, high, about) => {
  if (!(high > low)) return [low];
  let step = 10 ** Math.floor(Math.log10((high - low) / about));
  for (const factor of [1, 2, 5, 10])
    if ((high - low) / (step * factor) <= about) {
      step *= factor;
      break;
    }
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) found.push(+(n * step).toPrecision(12));
  return found;
};

/** The frame that holds the values between x0 and x1; logarithmic where only that shows the end of a curve. */
export const frame = (lines, x0, x1) => {
  let low = Infinity, high = -Infinity;
  for (const line of lines)
    for (const points of [line.points, line.trend ?? []])
      for (const [x, y] of points)
        if (x >= x0 && x <= x1) {
          low = Math.min(low, y);
          high = Math.max(high, y);
        }
  if (low > high) [low, high] = [0, 1];
  const log = low > 0 && high / low > 50;
  if (log) [low, high] = [low / 1.15, high * 1.15];
  else {
    const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    [low, high] = [low >= 0 && low < (high - low) * 0.5 ? 0 : low - room, high + room];
  }
  const share = (y) =>
    log ? Math.log(Math.max(y, low) / low) / Math.log(high / low) : (y - low) / (high - low);
  return {
    low, high, log, x0, x1, share,
    x: (x) => Math.round((SIZE * (x - x0)) / (x1 - x0)),
    y: (y) => Math.round(SIZE * (1 - share(y))),
  };
};

export const valueTicks = ({ low, high, log }, about) => {
  if (!log) return ticks(low, high, about);
  const found = (factors) => {
    const values = [];
    for (let d = Math.floor(Math.log10(low)); d <= Math.ceil(Math.log10(high)); d++)
      for (const factor of factors) if (factor * 10 ** d >= low && factor * 10 ** d <= high) values.push(factor * 10 ** d);
    return values;
  };
  for (const factors of [[1, 2, 5], [1, 3], [1]]) {
    const values = found(factors);
    if (values.length <= about + 1) return values;
  }
  const decades = found([1]);
  const every = Math.ceil(decades.length / about);
  return decades.filter((_, n) => n % every === 0);
};

/** The value at x on straight lines through the points; null outside of them. */
export const at = (points, x) => {
  if (!points.length || x < points[0][0] || x > points[points.length - 1][0]) return null;
  let low = 0, high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= x) low = middle;
    else high = middle;
  }
  const [[a, b], [c, d]] = [points[low], points[high]];
  return c === a ? b : b + ((d - b) * (x - a)) / (c - a);
};

/** The axis of steps, from 0 unless the first lies far from it. */
export const stepsAxis = (low, high) => ({
  key: "step", unit: "step", per: 1, low: low >= 0 && low < high / 2 ? 0 : low, high: high > low ? high : low + 1,
});

/** The axis of seconds, in the unit that suits its length. */
export const timeAxis = (low, high) => {
  const length = Math.max(high, 1e-3);
  const [per, unit] = length <= 120 ? [1, "seconds"] : length <= 7200 ? [60, "minutes"] : length <= 172800 ? [3600, "hours"] : [86400, "days"];
  return { key: "time", unit, per, low: low >= 0 && low < high / 2 ? 0 : low, high: high > low ? high : low + 1 };
};

export const path = (shape, points, breaks = []) => {
  const cuts = [...breaks].sort((a, b) => a - b);
  let cut = 0, drawn = "";
  points.forEach(([x, y], n) => {
    let apart = n === 0;
    while (cut < cuts.length && cuts[cut] < x) {
      cut++;
      apart = true;
    }
    drawn += `${apart ? "M" : "L"}${shape.x(x)} ${shape.y(y)}`;
  });
  return drawn;
};
