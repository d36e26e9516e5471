// Graphs and the parts of their picture: nothing here knows of a training.
"use strict";
const Drawing = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const element = (name, attributes, parent) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    parent.append(made);
    return made;
  };
  const key = (i, j) => `${Math.min(i, j)}-${Math.max(i, j)}`;
  const numbers = (set) => [...set].map((one) => one.split("-").map(Number));
  // Agents and links of a graph by its text.
  const named = (text) => {
    const [kind, rest] = [text.split(":")[0], text.split(":").slice(1).join(":")];
    const pairs = [], n = parseInt(rest, 10);
    if (kind === "links") for (const link of rest.split(",")) pairs.push(link.split("-").map(Number));
    if (kind === "ring") for (let i = 0; i < n; i += 1) pairs.push([i, (i + 1) % n]);
    if (kind === "path") for (let i = 1; i < n; i += 1) pairs.push([i - 1, i]);
    if (kind === "star") for (let i = 1; i < n; i += 1) pairs.push([0, i]);
    if (kind === "complete") for (let i = 0; i < n; i += 1) for (let j = 0; j < i; j += 1) pairs.push([j, i]);
    if (kind === "grid") {
      const [rows, columns] = rest.split("x").map(Number);
      for (let r = 0; r < rows; r += 1) for (let c = 0; c < columns; c += 1) {
        if (c) pairs.push([r * columns + c - 1, r * columns + c]);
        if (r) pairs.push([(r - 1) * columns + c, r * columns + c]);
      }
    }
    return { agents: 1 + Math.max(0, ...pairs.flat()), links: pairs };
  };
  // Where an agent stands on a circle, in the picture's 400 by 320.
  const circle = (agent, agents) => {
    const turn = (2 * Math.PI * agent) / agents - Math.PI / 2;
    return [200 + 140 * Math.cos(turn), 160 + 125 * Math.sin(turn)];
  };
  const pressable = (made, label, pressed, act) => {
    made.setAttribute("tabindex", "0");
    made.setAttribute("role", "button");
    made.setAttribute("aria-label", label);
    made.setAttribute("aria-pressed", String(pressed));
    made.addEventListener("click", (event) => { event.stopPropagation(); act(); });
    made.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      act();
      const again = document.querySelector(`#picture [aria-label="${label}"]`);
      if (again) again.focus();
    });
  };
  // The place that is farthest from all agents, for those who draw without pointing.
  const freePlace = (agents) => {
    let best = [200, 160], room = 0;
    for (let x = 30; x <= 370; x += 20) for (let y = 30; y <= 290; y += 20) {
      const near = Math.min(...agents.map(([a, b]) => Math.hypot(a - x, b - y)), 1e3);
      if (near > room) [best, room] = [[x, y], near];
    }
    return best;
  };
  return { element, key, numbers, named, circle, pressable, freePlace };
})();
