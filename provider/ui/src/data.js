// Asks our app on Airflow's server, again and again while something goes on.
import { useEffect, useState } from "./react.js";

/** The address below the base of Airflow's pages, which may be a path. */
export const address = (...parts) =>
  new URL(["allaboard", ...parts.map((part) => encodeURIComponent(part))].join("/"), document.baseURI).href;

const ask = async (url, signal) => {
  const answer = await fetch(url, { signal, headers: { Accept: "application/json" }, credentials: "same-origin" });
  if (answer.ok) return answer.json();
  const words = { 401: "you are signed out; sign in again", 403: "you may not see the task instances of this DAG", 404: "there is no such task instance" };
  throw new Error(words[answer.status] ?? `the server answered ${answer.status}`);
};

/** {value, error}: what `url` answers, asked again after `every(value)` seconds, never for null; not while the page is hidden. */
export const useAnswer = (url, every) => {
  const [found, setFound] = useState({ value: null, error: null });
  useEffect(() => {
    const control = new AbortController();
    let timer = null, gone = false;
    setFound({ value: null, error: null });
    const look = async () => {
      if (document.hidden) {
        timer = setTimeout(look, 1000);
        return;
      }
      let next = 15;
      try {
        const value = await ask(url, control.signal);
        next = every(value);
        if (!gone) setFound({ value, error: null });
      } catch (error) {
        if (gone) return;
        setFound((before) => ({ ...before, error: error.message }));
      }
      if (!gone && next !== null) timer = setTimeout(look, next * 1000);
    };
    look();
    return () => {
      gone = true;
      clearTimeout(timer);
      control.abort();
    };
  }, [url]);
  return found;
};
