// The scripts of this folder are parts of one function, joined in the order of html.py.
const byId = (id) => document.getElementById(id);
const trace = JSON.parse(byId("data-trace").textContent);
const numbers = JSON.parse(byId("data-explorers").textContent);
const SVG = "http://www.w3.org/2000/svg";

// Text of a model only ever becomes text nodes.
function make(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}
function draw(name, attributes = {}, text = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}
function rowOf(cell, values) {
  const line = make("tr");
  for (const value of values) line.append(value instanceof Node ? value : make(cell, {}, value));
  return line;
}
function headOf(names) {
  const line = make("tr");
  for (const name of names) line.append(make("th", { scope: "col" }, name));
  return line;
}

const shown = (id) => trace.text[id] ?? `<${id}>`;
const clipped = (text, most) => ([...text].length > most ? [...text].slice(0, most - 1).join("") + "\u2026" : text);
const spaced = (text) => text.replaceAll(" ", "\u2423");
const percent = (value) => {
  if (value >= 0.9995) return "100%";
  if (value < 0.0005) return "<0.1%";
  return `${(100 * value).toFixed(value < 0.1 || value > 0.99 ? 1 : 0)}%`;
};
const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
const two = (number) => number.toFixed(2);
