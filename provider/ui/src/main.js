// Airflow loads this module once and looks for a component under the name of each plugin: see plugin.py.
import { Models } from "./models.js";
import { Now } from "./now.js";
import { h } from "./react.js";
import style from "./style.css";
import { Training } from "./training.js";

const ID = "allaboard-style";
if (!document.getElementById(ID)) {
  const made = document.createElement("style");
  made.id = ID;
  made.textContent = style;
  document.head.append(made);
}

const framed = (Part) => (props) => h("div", { className: "allaboard" }, h(Part, props));
globalThis.Training = framed(Training);
globalThis.Models = framed(Models);
globalThis.Trainings = framed(Now);
// For whoever loads it under another name.
globalThis.AirflowPlugin = globalThis.Training;
