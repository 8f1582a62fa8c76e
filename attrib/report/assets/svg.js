// A few SVG elements; scales map values to places.
const SVG = "http://www.w3.org/2000/svg";

function svg(tag, properties = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  put(element, properties);
  element.append(...children.flat());
  return element;
}

const linear = (low, high, from, to) => (value) => from + ((value - low) / (high - low || 1)) * (to - from);
const logarithmic = (low, high, from, to) => {
  const scale = linear(Math.log10(low), Math.log10(high), from, to);
  return (value) => scale(Math.log10(value));
};
