// Airflow loads this module once and looks for a component under the name of each plugin: see plugin.py.
import { Models } from "./models.js";
import { Now } from "./now.js";
import { Nothing } from "./parts.js";
import { Component, h, useEffect, useState } from "./react.js";
import style from "./style.css";
import { zone } from "./words.js";

const ID = "allaboard-style";
if (!document.getElementById(ID)) {
  const made = document.createElement("style");
  made.id = ID;
  made.textContent = style;
  document.head.append(made);
}

/** A value that cannot be drawn, such as a snapshot that some task made up, is no reason to lose the page. */
class Guard extends Component {
  state = { error: null };
  static getDerivedStateFromError(error) {
    return { error };
  }
  render() {
    return this.state.error ? h(Nothing, { title: "This cannot be drawn", text: String(this.state.error) }) : this.props.children;
  }
}

/** Draws again when the reader chooses another zone in Airflow's pages, here or in another window. */
const useZone = () => {
  const [, setZone] = useState(zone());
  useEffect(() => {
    const look = () => setZone(zone());
    const events = ["storage", "local-storage"];
    for (const event of events) addEventListener(event, look);
    return () => events.forEach((event) => removeEventListener(event, look));
  }, []);
};

const framed = (Part) => (props) => {
  useZone();
  return h("div", { className: "allaboard" }, h(Guard, null, h(Part, props)));
};
globalThis.Models = framed(Models);
globalThis.Trainings = framed(Now);
