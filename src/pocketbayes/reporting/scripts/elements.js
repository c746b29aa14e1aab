"use strict";
// Elements, numbers as people read them, scales, and the tip that follows the pointer.
// Text goes in as text nodes only: nothing that came from data is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";
const RUN_COLOURS = 8;
const DASHES = ["", "6 4", "2 3", "9 3 2 3"];

/** An HTML element; attributes that are functions become listeners, null ones are left out. */
function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false)
      element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) {
      element.append(child instanceof Node ? child : document.createTextNode(String(child)));
    }
  }
  return element;
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const runColour = (run) => `var(--run-${run % RUN_COLOURS})`;
const runDash = (run) => DASHES[Math.floor(run / RUN_COLOURS) % DASHES.length];

// -- numbers as people read them ------------------------------------------------------------------------------------

const WRITERS = {
  percent: (v) => `${(100 * v).toFixed(2)} %`,
  share: (v) => `${+(100 * v).toPrecision(3)} %`,
  number: (v) => (v !== 0 && Math.abs(v) < 1e-3 ? v.toExponential(1) : Math.abs(v) >= 1000 ? si(v) : v.toFixed(4)),
  short: (v) =>
    (v !== 0 && Math.abs(v) < 1e-3 ? v.toExponential(1).replace(".0e", "e") : String(+v.toPrecision(3)))
      .replace("e+", "e")
      .replaceAll("-", "−"),
  bytes: (v) => si(v) + "B",
  count: (v) => v.toLocaleString("en"),
  flops: (v) => si(v),
  round: (v) => (v >= 1000 ? si(v, 2) : WRITERS.short(v)),
  roundBytes: (v) => si(v, 2) + "B",
  roundSeconds: (v) =>
    v >= 1
      ? `${+v.toPrecision(2)} s`
      : v >= 1e-3
        ? `${+(1e3 * v).toPrecision(2)} ms`
        : `${+(1e6 * v).toPrecision(2)} µs`,
  seconds: (v) =>
    v >= 1 ? `${v.toPrecision(3)} s` : v >= 1e-3 ? `${(1e3 * v).toPrecision(3)} ms` : `${(1e6 * v).toPrecision(3)} µs`,
};

function write(kind, value) {
  return isNumber(value) ? WRITERS[kind](value) : "–";
}

/** A number with k, M, G; to three digits, or short. */
function si(value, digits) {
  if (!value) return "0 ";
  const steps = ["", "k", "M", "G", "T", "P"];
  let step = 0;
  while (Math.abs(value) >= 999.5 && step < steps.length - 1) {
    value /= 1000;
    step += 1;
  }
  return `${digits ? +value.toPrecision(digits) : step ? value.toPrecision(3) : Math.round(value)} ${steps[step]}`;
}

// -- scales ---------------------------------------------------------------------------------------------------------

/** Positions of values: {at, back, ticks, log}. */
function scale(domain, range, log) {
  const map = log ? Math.log10 : (v) => v;
  const [low, high] = domain.map(map);
  const span = high - low || 1;
  return {
    log,
    at: (v) => range[0] + ((map(v) - low) / span) * (range[1] - range[0]),
    back: (p) => {
      const v = low + ((p - range[0]) / (range[1] - range[0])) * span;
      return log ? 10 ** v : v;
    },
    ticks: (count) => (log ? logTicks(domain) : ticks(domain[0], domain[1], count)),
  };
}

function ticks(low, high, count = 5) {
  const rough = (high - low) / count;
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1)
    found.push(+(i * step).toPrecision(12));
  return found;
}

function logTicks([low, high]) {
  const found = [];
  const decades = Math.log10(high / low);
  const leads = decades > 3 ? [1] : decades > 1.2 ? [1, 3] : [1, 2, 3, 5, 7];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const lead of leads) {
      const value = lead * 10 ** power;
      if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
    }
  }
  return found.length > 1 ? found : [low, high];
}

/** The range of values with some air around; wholly given ranges are kept. */
function domainOf(values, { log = false, low, high, air = 0.06 } = {}) {
  const known = values.filter((v) => isNumber(v) && (!log || v > 0));
  if (!known.length) return log ? [1, 10] : [0, 1];
  let [least, most] = [Math.min(...known), Math.max(...known)];
  if (log) {
    const factor = Math.max((most / least) ** air, 1.15);
    return [low ?? least / factor, high ?? most * factor];
  }
  const pad = (most - least || Math.abs(most) || 1) * air;
  return [low ?? least - pad, high ?? most + pad];
}

// -- the tip that follows the pointer -------------------------------------------------------------------------------

const tip = {
  element: document.getElementById("tip"),
  show(lines, x, y, run) {
    const [first, ...rest] = lines;
    this.element.replaceChildren(h("strong", {}, first), ...rest.map((line) => h("span", {}, line)));
    this.element.style.setProperty("--tip", run === undefined || run === null ? "var(--accent)" : runColour(run));
    this.element.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = this.element;
    const left = x + 14 + width > innerWidth - 8 ? x - 14 - width : x + 14;
    this.element.style.left = `${Math.max(8, left)}px`;
    this.element.style.top = `${Math.min(Math.max(8, y - height / 2), innerHeight - height - 8)}px`;
  },
  hide() {
    this.element.hidden = true;
  },
};

const say = (text) => {
  document.getElementById("live").textContent = text;
};
