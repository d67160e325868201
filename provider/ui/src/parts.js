// What the tabs share: tables, a head, a polite nothing.
import { h } from "./react.js";

export const Section = ({ title, aside = null, children }) =>
  h("section", null, h("div", { className: "title" }, h("h2", null, title), aside), children);

export const Table = ({ heads, rows, align = [] }) =>
  h("div", { className: "wide" },
    h("table", null,
      h("thead", null, h("tr", null, heads.map((head, n) => h("th", { key: n, className: align[n] ?? "" }, head)))),
      h("tbody", null, rows.map((row, n) => h("tr", { key: n }, row.map((cell, m) => h("td", { key: m, className: align[m] ?? "" }, cell)))))));

export const Fine = ({ children }) => h("p", { className: "fine" }, children);

/** While nothing is known, and where there is nothing. */
export const Nothing = ({ title, text }) => h("div", { className: "nothing" }, h("b", null, title), h("p", null, text));

export const Badge = ({ tone, children }) => h("span", { className: `badge ${tone}` }, children);
