// Tables in <div class="live"> can be sorted by a click on a heading, and filtered by words that a row has. On a phone the
// rows of other wide tables are blocks, and each cell stands behind its heading. Columns of numbers are set to the right.
"use strict";

// The number that a cell stands for: 448, 3.4e+38, 2^-14, "fl 6"; NaN for words.
function numberOf(text) {
  const power = text.match(/^2\^(-?\d+)$/);
  if (power) return 2 ** Number(power[1]);
  const found = text.match(/^(?:fl |es )?(-?\d[\d.]*(?:e[+-]\d+)?)/);
  return found ? Number(found[1]) : NaN;
}

// Numbers before words before nothing.
function compare(a, b) {
  const [x, y] = [numberOf(a), numberOf(b)];
  if (!Number.isNaN(x) && !Number.isNaN(y)) return x - y || a.localeCompare(b);
  if (Number.isNaN(x) !== Number.isNaN(y)) return Number.isNaN(x) ? 1 : -1;
  return (a === "-") - (b === "-") || a.localeCompare(b);
}

// What others call a row: PyTorch's and ml_dtypes's float8_e4m3fn, fp8, half.
const NAMES = {float16: "fp16 half", bfloat16: "bf16", e2m1fn: "float4_e2m1fn_x2"};

function aliases(name, bits) {
  const float = /^e\d+m\d+/.test(name) || name === "hif8" ? `fp${bits} float${bits}_${name}` : "";
  return `${float} ${NAMES[name] || ""}`;
}

function makeLive(place) {
  const table = place.querySelector("table");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const textOf = (row, column) => row.cells[column].textContent.trim();

  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = heading.textContent;
    heading.replaceChildren(button);
    button.addEventListener("click", () => {
      const order = heading.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      rows.sort((a, b) => sign * compare(textOf(a, column), textOf(b, column)));
      body.append(...rows);
    });
  });

  const filter = document.createElement("input");
  filter.type = "search";
  filter.placeholder = "Filter: fp8 saturate";
  filter.setAttribute("aria-label", "Show rows that have all these words");
  const count = document.createElement("output");
  const show = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const cells = [...row.cells].map((cell) => cell.textContent.toLowerCase());
      cells.push(aliases(cells[0].trim(), cells[1].trim()));
      row.hidden = !words.every((word) => cells.some((cell) => (/^\d+$/.test(word) ? cell === word : cell.includes(word))));
    }
    count.textContent = ` ${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
  };
  filter.addEventListener("input", show);
  place.prepend(filter, count);
  show();
}

document.querySelectorAll("div.live").forEach(makeLive);

const COLUMNS = 3; // that fit a phone, if they are short

function isWide(table) {
  return table.tHead.rows[0].cells.length > COLUMNS || table.scrollWidth > table.closest("article").clientWidth;
}

function makeStacked(table) {
  const headings = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
  table.dataset.stacked = "";
  for (const row of table.tBodies[0].rows) [...row.cells].forEach((cell, at) => (cell.dataset.label = headings[at]));
}

const NUMBER = /^(?:[-+±]?\d[\d.,]*(?:e[+-]?\d+)?\s?%?(?: to | ± )?)+$/; // 448, 1,920, 0.9 to 1.3, 37 %

function setRight(table) {
  [...table.tHead.rows[0].cells].forEach((heading, at) => {
    const cells = [...table.tBodies[0].rows].map((row) => row.cells[at]);
    const texts = cells.map((cell) => cell.textContent.trim()).filter((text) => text !== "" && text !== "-");
    if (at && texts.length && texts.every((text) => NUMBER.test(text))) {
      for (const cell of [heading, ...cells]) cell.classList.add("number");
    }
  });
}

// All are measured before the first one changes: a measurement after a change lays out the page anew.
const others = document.querySelectorAll(".md-content table:not([class]):not(.live *, .ledger *)");
const headed = [...others].filter((table) => table.tHead);
headed.filter(isWide).forEach(makeStacked);
headed.forEach(setRight);
