// Numbers as text. Unknown is a dash, never 0.
const UNKNOWN = "–";
const known = (value) => typeof value === "number" && Number.isFinite(value);

const formatters = new Map();
function fixed(value, digits) {
  if (!known(value)) return UNKNOWN;
  if (!formatters.has(digits)) {
    formatters.set(digits, new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
  }
  return formatters.get(digits).format(value).replace("-", "−");
}

const rate = (gbps) => fixed(gbps, gbps >= 1000 ? 0 : 1);
const signed = (value, digits) => (known(value) ? (value > 0 ? "+" : value < 0 ? "−" : "") + fixed(Math.abs(value), digits) : UNKNOWN);
// a long name keeps its end, which tells instances of a template apart
const shortened = (name, most) => (name.length <= most ? name : `${name.slice(0, Math.ceil(most * 0.55))}…${name.slice(-Math.floor(most * 0.45) + 1)}`);
const plural = (number, thing, several = `${thing}s`) => `${fixed(number, 0)} ${number === 1 ? thing : several}`;

function microseconds(us) {
  return fixed(us, us < 100 ? 2 : 1);
}

// a duration in ns with the unit that gives it three to five digits
function duration(ns) {
  if (!known(ns)) return UNKNOWN;
  if (Math.abs(ns) < 1e3) return `${fixed(ns, 0)} ns`;
  if (Math.abs(ns) < 1e6) return `${microseconds(ns / 1e3)} µs`;
  return `${fixed(ns / 1e6, 3)} ms`;
}

function bytes(count) {
  if (!known(count)) return UNKNOWN;
  if (count < 1e3) return `${fixed(count, 0)} B`;
  if (count < 1e6) return `${fixed(count / 1e3, 1)} kB`;
  if (count < 1e9) return `${fixed(count / 1e6, 1)} MB`;
  return `${fixed(count / 1e9, 2)} GB`;
}

// ascending round values in [low, high], about `wanted` of them
function niceTicks(low, high, wanted) {
  const rough = (high - low) / Math.max(wanted, 1);
  if (!(rough > 0)) return [];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  const ticks = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) ticks.push(value);
  return ticks;
}
