// The tab of a task instance: how its training goes. Everything is drawn from the one value of `page_data`.
import { Chart } from "./chart.js";
import { address, useAnswer } from "./data.js";
import { Badge, Fine, Nothing, Section, Table } from "./parts.js";
import { h, useMemo, useState } from "./react.js";
import { at, stepsAxis, ticks, timeAxis } from "./scale.js";
import { NONE, bytes, counted, inZone, isLoss, moment, number, percent, seconds, spaced, tone, zone } from "./words.js";

const TILES = 6, SHOWN = 10, DOTS = 60, METRICS = 5;
const OVER = ["success", "failed", "skipped", "upstream_failed", "removed"];

const every = ({ run, task, source }) => {
  if (run?.is_final || (!run && OVER.includes(task.state))) return null;
  return source === "live" ? 4 : 10;
};

export const Training = ({ dagId, runId, taskId, mapIndex }) => {
  const index = mapIndex === undefined || mapIndex === null || mapIndex === "" ? "-1" : String(mapIndex);
  const { value, error } = useAnswer(address("api", "task", dagId, runId, taskId, index), every);
  if (value === null)
    return error ? h(Nothing, { title: "This cannot be shown", text: `${error}.` }) : h("p", { className: "fine loading" }, "Loading …");
  if (value.run === null) return h(Nothing, { title: "No training here", text: value.empty });
  return h(Run, { run: value.run, note: value.note, error, live: value.source === "live" && !value.run.is_final });
};

const Run = ({ run, note, error, live }) => {
  const state = spaced(run.state);
  return h("article", { "data-state": run.state },
    h("header", { className: tone(run.state) },
      h("p", { className: "kicker" }, `${run.kind} run`, live && h("span", { className: "live" }, " live")),
      h("h1", null, run.job ?? run.run, " ", h(Badge, { tone: tone(run.state) }, state)),
      h("p", { className: "lead" }, headline(run))),
    error && h("p", { className: "fine warning" }, `It could not be read again: ${error}.`),
    note && h("p", { className: "fine warning" }, `${inZone(note)}.`),
    run.message && !isSaid(run, run.message) && h("pre", null, run.message),
    h(Tiles, { run }),
    h(Reasons, { run }),
    h(SinceLastGood, { since: run.since_last_good }),
    h(Curves, { run }),
    h(Timeline, { run }),
    h(Members, { run }),
    h(LastLines, { run }),
    h(Checkpoints, { run }),
    h(Events, { run }),
    h(Facts, { run }));
};

const headline = (run) => run.headline.replace(/, when it was looked at: .*$/, "");

/** Whether the headline has this sentence, which need not stand there twice. */
const isSaid = (run, text) => headline(run).includes(text.trim());

const Tiles = ({ run }) => {
  const { progress } = run;
  const tiles = run.metrics.slice(0, TILES).map((m) => [m.name, number(m.value)]);
  if (progress.step !== null) {
    const done = progress.share >= 0.01 && !run.is_final ? ` (${percent(progress.share)})` : "";
    tiles.push(["steps", (progress.total ? `${progress.step}/${progress.total}` : String(progress.step)) + done]);
  }
  if (progress.seconds_left) tiles.push(["left, at this speed", seconds(progress.seconds_left)]);
  tiles.push([run.is_final ? "took" : "so far", seconds(run.seconds)]);
  if (progress.steps_per_second) tiles.push(["steps per second", String(+progress.steps_per_second.toPrecision(3))]);
  if (run.goodput) tiles.push([`goodput, of the ${run.goodput.by === "time" ? "time" : "steps"}`, percent(run.goodput.share)]);
  tiles.push(["members", run.members_phrase || NONE]);
  if (run.restarts || run.attempt > 1) tiles.push(["restarts", `${run.restarts}${run.attempt > 1 ? `, attempt ${run.attempt}` : ""}`]);
  if (progress.lost_steps) tiles.push(["steps done twice", String(progress.lost_steps)]);
  return h("div", null,
    progress.share !== null && !run.is_final && h("div", { className: "progress", role: "progressbar", "aria-valuenow": Math.round(progress.share * 100), "aria-valuemin": 0, "aria-valuemax": 100, "aria-label": "steps done" },
      h("i", { style: { width: `${100 * Math.min(1, progress.share)}%` } })),
    h("dl", { className: "tiles" }, tiles.map(([name, text]) => h("div", { key: name }, h("dt", null, name), h("dd", null, text)))));
};

const Reasons = ({ run }) => {
  const badly = run.is_final && !run.ok;
  const held = run.held_by && !run.diagnoses.some((d) => d.summary === run.held_by);
  if (!held && !run.diagnoses.length) return null;
  const title = badly ? "What went wrong" : run.held_by ? "Why it waits" : "What to look at";
  return h(Section, { title },
    held && h("div", { className: "reason warning" }, h("h3", null, inZone(run.held_by))),
    run.diagnoses.map((d, n) => h("div", { key: n, className: `reason ${n === 0 && badly ? "bad" : "warning"}` },
      !isSaid(run, d.summary) && h("h3", null, d.summary),
      told(d).length > 0 && h("ul", null, told(d).map((e, m) => h("li", { key: m }, h("code", null, `${e.object} ${e.field}`), " ", h("q", null, e.text)))),
      h("p", null, `${d.fix.slice(0, 1).toUpperCase()}${d.fix.slice(1)}. `, h("span", { className: "code" }, d.code)))),
    h(LeftOut, { count: run.diagnoses_left_out, noun: "more finding" }));
};

/** The evidence that says more than the summary. */
const told = ({ summary, evidence }) => evidence.filter((e) => e.text !== summary);

const SinceLastGood = ({ since }) => since && h(Section, { title: "Since the last good run" },
  h(Fine, null, `${since.run}.`),
  since.changes.length > 0 && h("ul", null, since.changes.map((change, n) => h("li", { key: n }, change))),
  since.lines.length > 0 && h("pre", null, since.lines.map((line) => `${line.member}: ${line.text}`).join("\n")));

// --- curves

const Curves = ({ run }) => {
  const [axisKey, setAxis] = useState("step");
  const [view, setView] = useState(null);
  const { curves, clock } = run;
  const axes = useMemo(() => {
    if (!curves.length) return {};
    const ends = curves.flatMap((c) => [c.first[0], c.last[0]]);
    const found = { step: stepsAxis(Math.min(...ends), Math.max(...ends)) };
    if (clock.length > 1) found.time = timeAxis(clock[0][1], clock[clock.length - 1][1]);
    return found;
  }, [run]);
  if (!curves.length)
    return run.metrics.length || !run.is_final ? null : h(Section, { title: "Curves" }, h(Fine, null, "This run reported no numbers. ", h("code", null, "allaboard.inside.report(step=, total=, loss=)"), " in the script draws its curve here."));
  const timed = axisKey === "time" && axes.time, axis = timed ? axes.time : axes.step;
  const losses = curves.filter((c) => isLoss(c.name)).slice(0, TILES), others = curves.filter((c) => !losses.includes(c));
  const choose = (key) => () => {
    setAxis(key);
    setView(null);
  };
  const aside = h("span", { className: "tools" },
    axes.time && h("span", { className: "choice", role: "group", "aria-label": "axis" },
      [["step", "Steps"], ["time", "Time"]].map(([key, text]) => h("button", { key, type: "button", "aria-pressed": axis.key === key, onClick: choose(key) }, text))),
    view ? h("button", { type: "button", onClick: () => setView(null) }, "Show all") : h("span", { className: "fine hint" }, "Drag over a chart to zoom."));
  const how = { run, axis, timed, view, onZoom: setView };
  return h(Section, { title: "Curves", aside },
    losses.length > 0 && h(Figure, { ...how, title: "Loss", curves: losses, wide: true }),
    run.nonfinite && h("p", { className: "warning" }, `${run.nonfinite.name} was not a finite number at step ${run.nonfinite.step}${run.nonfinite.count > 1 ? ` and ${run.nonfinite.count - 1} more times` : ""}.`),
    others.length > 0 && h("div", { className: "pair" }, others.map((c) => h(Figure, { ...how, key: `${c.kind} ${c.name}`, title: spaced(c.name), curves: [c] }))),
    run.curves_left_out_count > 0 && h(Fine, null, `Not drawn: ${counted(run.curves_left_out_count, "more curve")}.`));
};

const Figure = ({ run, title, curves, axis, timed, view, onZoom, wide = false }) => {
  const placed = (points) => (timed ? points.map(([x, y]) => [at(run.clock, x), y]).filter(([x]) => x !== null) : points);
  const place = (step) => (timed ? at(run.clock, step) : step);
  const lines = curves.map((curve, n) => ({
    name: curve.name, colour: wide ? n : 0, points: placed(curve.points), trend: placed(curve.trend),
    dots: curve.kind === "checkpoint" && curve.points.length <= DOTS,
    breaks: timed ? run.breaks.map(place).filter((x) => x !== null) : [],
  }));
  const { best } = run, x = best && place(best.step);
  const marks = run.resumed.map((again) => ({ x: timed ? again.at : again.step, text: `resumed from step ${again.step}` })).filter((mark) => mark.x !== null);
  if (best && x !== null) marks.push({ x, text: `best checkpoint, step ${best.step}`, best: true });
  const starred = best && x !== null && best.value !== null && curves.some((c) => c.kind === "checkpoint" && c.name === best.metric);
  return h("figure", { className: wide ? "big" : "small" },
    h("figcaption", null, h("b", null, title),
      curves.map((c, n) => h("span", { key: n, className: curves.length > 1 ? `key s${n % 6}` : "" }, curves.length > 1 && `${spaced(c.name)} `, h("span", { className: "value" }, number(c.last[1])))),
      starred && h("span", { className: "key-best" }, `★ best ${number(best.value)} at step ${best.step}`)),
    h(Chart, { title, lines, axis, marks, star: starred ? [x, best.value] : null, wide, view, onZoom }));
};

// --- time

const COLOURS = { admitted: "s5", scheduled: "s3", image: "s1", rendezvous: "s4", "first step": "s2", training: "s0" };
const KINDS = [["save", "saves"], ["restart", "restarts"], ["eviction", "evictions"], ["failure", "failures"], ["stop", "stops"]];

const Timeline = ({ run }) => {
  const { begin, end, spans, tries, marks } = run.timeline;
  if (end <= begin) return null;
  const left = (moment_) => 100 * Math.min(1, Math.max(0, (moment_ - begin) / (end - begin)));
  const bar = (from, to, colour, title, key) => h("i", { key, className: colour, style: { left: `${left(from)}%`, width: `${Math.max(0.15, left(to) - left(from))}%` }, title: `${title} ${seconds(to - from)}` });
  const lane = (name, body, count = "") => h("div", { key: name, className: "lane" }, h("span", { title: name }, name), h("div", null, body), h("span", null, count));
  const took = {};
  for (const span of spans) took[span.name] = (took[span.name] ?? 0) + span.end - span.begin;
  const axis = timeAxis(begin, end);
  return h(Section, { title: "Where the time went" },
    h("p", { className: "keys" }, Object.entries(took).filter(([, s]) => s >= 0.05).map(([name, s]) => h("span", { key: name, className: `key ${COLOURS[name] ?? "rest"}` }, `${name} ${seconds(s)}`))),
    h("div", { className: "lanes" },
      lane("phases", spans.map((span, n) => bar(span.begin, span.end, COLOURS[span.name] ?? "rest", span.name, n))),
      tries.length > 1 && tries.map((one) => {
        const name = `attempt ${one.attempt}${one.restart ? ` ↻ ${one.restart}` : ""}`;
        return lane(name, bar(one.begin, one.end, "try", name), seconds(one.end - one.begin));
      }),
      KINDS.map(([kind, plural]) => {
        const those = marks.filter((mark) => mark.kind === kind && mark.at >= begin && mark.at <= end);
        return those.length > 0 && lane(plural, those.map((mark, n) => h("b", { key: n, className: kind, style: { left: `${left(mark.at)}%` }, title: `${seconds(mark.at)} ${mark.text}` })), String(those.length));
      }),
      h("div", { className: "lane scale" }, h("span"), h("div", null, ticks(begin / axis.per, end / axis.per, 6).map((value) => h("i", { key: value, style: { left: `${left(value * axis.per)}%` } }, number(value)))), h("span"))),
    h(Fine, null, `${seconds(end - begin)} in all, from when it was created; in ${axis.unit}.${goodput(run.goodput)}`),
    h(LeftOut, { count: run.timeline.marks_left_out, noun: "earlier mark" }));
};

const goodput = (good) => {
  if (!good) return "";
  return good.by === "time"
    ? ` Goodput ${percent(good.share)}: ${seconds(good.useful)} of ${seconds(good.of)} passed between reported steps that no restart undid.`
    : ` Goodput ${percent(good.share)}: ${good.useful.toLocaleString("en")} of ${good.of.toLocaleString("en")} steps were not done again.`;
};

// --- members, checkpoints, events, facts

const MEMBER_TONES = { succeeded: "good", failed: "bad" };

const Members = ({ run }) => {
  if (!run.members.length) return null;
  const nodes = run.members.some((m) => m.node);
  const rows = run.members.map((m) => [
    m.name, m.rank, ...(nodes ? [m.node ?? NONE] : []),
    h("span", { className: MEMBER_TONES[m.phase] ?? "calm" }, m.phase + (m.why ? ` (${m.why})` : "")),
    m.exit_code ?? NONE, m.restarts,
  ]);
  return h(Section, { title: "Members" },
    h(Table, { heads: ["member", "rank", ...(nodes ? ["node"] : []), "phase", "exit code", "restarts"], rows }),
    h(LeftOut, { count: run.members_left_out, noun: "calmer member" }));
};

const LastLines = ({ run }) => {
  const told = run.members.filter((m) => m.lines.length).sort((a, b) => a.order - b.order);
  if (!told.length) return null;
  return h(Section, { title: "The last lines" }, told.map((m, n) => h("details", { key: m.name, className: "lines", open: n < 1 },
    h("summary", null, m.name), h("pre", null, m.lines.join("\n")), m.log && h(Fine, null, "All of them: ", h("code", null, m.log)))));
};

const Checkpoints = ({ run }) => {
  const saved = run.checkpoints;
  if (!saved.length) {
    const facts = [["latest", run.checkpoint], ["best", run.best_checkpoint === run.checkpoint ? null : run.best_checkpoint]].filter(([, uri]) => uri);
    return facts.length > 0 && h(Section, { title: "Checkpoints" }, h(Definitions, { facts }));
  }
  const names = [...new Set(saved.flatMap((s) => Object.keys(s.metrics)))].slice(0, METRICS);
  const timed = saved.some((s) => s.at !== null), sized = saved.some((s) => s.size !== null);
  const row = (s) => [
    `${s.step}${s.best ? " ★" : ""}`, ...(timed ? [seconds(s.at)] : []), ...names.map((name) => number(s.metrics[name])),
    ...(sized ? [bytes(s.size)] : []), h("code", null, s.uri),
  ];
  const heads = ["step", ...(timed ? ["after"] : []), ...names, ...(sized ? ["size"] : []), "place"];
  const first = saved.filter((s, n) => n < SHOWN || s.best), rest = saved.filter((s) => !first.includes(s));
  return h(Section, { title: "Checkpoints" },
    h(Table, { heads, rows: first.map(row) }),
    rest.length > 0 && h("details", null, h("summary", null, counted(rest.length, "older one")), h(Table, { heads, rows: rest.map(row) })),
    h(Fine, null, `${saved.some((s) => s.best) ? "★ the best. " : ""}Retention may have removed older ones since.`),
    h(LeftOut, { count: run.checkpoints_left_out, noun: "older checkpoint" }));
};

const Events = ({ run }) => run.events.length > 0 && h(Section, { title: "Events" },
  h("details", { open: run.events.length <= 8 }, h("summary", null, counted(run.events.length, "event")),
    h(Table, { heads: ["after", "event", "object", "what happened"], rows: run.events.map((e) => [seconds(e.at), h("span", { className: e.type === "Warning" ? "warning" : "calm" }, e.reason), e.object, e.message]) })),
  h(LeftOut, { count: run.events_left_out, noun: "earlier event" }));

const Facts = ({ run }) => {
  const when = (offset) => (offset === null ? null : moment(run.zero + offset));
  const facts = [
    ["run", run.run], ["attempt", run.attempt], ["generation", run.generation > 1 ? run.generation : null],
    [`created (${zone()})`, when(run.created)], ["started", when(run.started)], ["finished", when(run.finished)],
    ["stopped", run.stop && `by ${run.stop.by}: ${run.stop.reason}`], ["conditions", run.conditions.join(" → ")],
    ["looked at", when(run.looked_at)], ...run.metrics.slice(TILES).map((m) => [m.name, number(m.value)]),
  ].filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h(Section, { title: "Facts" }, h(Definitions, { facts }),
    run.notes.length > 0 && h("ul", null, run.notes.map((note, n) => h("li", { key: n }, inZone(note)))),
    run.job_spec && h("details", null, h("summary", null, "The job as it was run"), h("pre", null, JSON.stringify(run.job_spec, null, 2))));
};

const Definitions = ({ facts }) => h("dl", { className: "facts" }, facts.flatMap(([name, value]) => [h("dt", { key: `t${name}` }, name), h("dd", { key: `d${name}` }, String(value))]));
const LeftOut = ({ count, noun }) => (count > 0 ? h(Fine, null, `${counted(count, noun)} left out here.`) : null);
