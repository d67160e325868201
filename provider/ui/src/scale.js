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

/** The frame that holds the values; logarithmic where only that shows the end of a curve. */
export const frame = (points) => {
  let low = Math.min(...points.map(([, y]) => y)), high = Math.max(...points.map(([, y]) => y));
  const log = low > 0 && high / low > 50;
  if (log) [low, high] = [low / 1.15, high * 1.15];
  else {
    const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    [low, high] = [low >= 0 && low < (high - low) * 0.5 ? 0 : low - room, high + room];
  }
  const share = (y) =>
    log ? Math.log(Math.max(y, low) / low) / Math.log(high / low) : (y - low) / (high - low);
  return { low, high, log, share, y: (y) => Math.round(SIZE * (1 - share(y))) };
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

export const path = (shape, points) => points.map(([x, y], n) => `${n ? "L" : "M"}${shape.x(x)} ${shape.y(y)}`).join("");
