// What the tabs draw is decided by functions of values: these are asked here, without a browser.
import assert from "node:assert/strict";
import { test } from "node:test";
import { frame, path, ticks, valueTicks } from "../src/scale.js";
import { alike, counted, filled, inZone, isFull, moment, number, origin, seconds, tone, written, zone } from "../src/words.js";

test("numbers are short", () => {
  assert.deepEqual([0, 0.1234567, 1200, 12345, 3e-6, 2.5e6, 7e9, null].map(number), ["0", "0.1235", "1200", "12.35k", "3e-6", "2.5M", "7G", "–"]);
});

test("times and counts read as on the pages of the command line", () => {
  assert.deepEqual([0.4, 12, 185, 7380, 100800, null].map(seconds), ["0.4 s", "12 s", "3m 05s", "2h 03m", "1d 04h", "–"]);
  assert.deepEqual([counted(1, "run"), counted(1200, "run")], ["1 run", "1,200 runs"]);
});

test("times are in the zone that the reader chose in Airflow's pages", () => {
  assert.deepEqual(["UTC", "Asia/Kolkata", "America/New_York"].map((name) => moment(0, name)), ["1970-01-01 00:00:00", "1970-01-01 05:30:00", "1969-12-31 19:00:00"]);
  assert.equal(written("2026-07-01T22:30:05.5Z", "Europe/Berlin"), "2026-07-02 00:30:05");
  assert.deepEqual([moment(null), written(null), written("yesterday")], ["–", "–", "–"]);
  const said = "Promotions as of 2026-11-25T23:05:09Z, and at 2026-11-26T00:00:00.25Z";
  assert.equal(inZone(said, "Asia/Tokyo"), "Promotions as of 2026-11-26 08:05:09 (Asia/Tokyo), and at 2026-11-26 09:00:00 (Asia/Tokyo)");
  assert.equal(inZone(null, "UTC"), null);
  const store = (kept) => ({ getItem: () => kept });
  assert.equal(zone(store('"Asia/Tokyo"')), "Asia/Tokyo");
  const own = Intl.DateTimeFormat().resolvedOptions().timeZone;
  assert.deepEqual([store(null), store("{"), store('"Nowhere/Land"'), undefined].map((kept) => zone(kept)), [own, own, own, own]);
});

test("a state has a tone, an unknown one is calm", () => {
  assert.deepEqual(["failed", "succeeded", "queued", "new word"].map(tone), ["bad", "good", "warning", "calm"]);
});

test("a queue says whose it is, and how full", () => {
  assert.equal(origin({ kind: "LocalQueue", parent: "research", where: "namespace team" }), "queue of Kueue, of ClusterQueue research, namespace team");
  assert.equal(origin({ kind: "ResourceQuota", parent: null, where: "namespace team" }), "quota, namespace team");
  assert.deepEqual([{ used: 2, limit: 8 }, { used: 9, limit: 8 }, { used: 0, limit: 0 }].map(filled), [0.25, 1, 1]);
  assert.deepEqual([{ used: 7, limit: 8 }, { used: 9, limit: 8 }].map(isFull), [false, true]);
});

test("rows that look alike are told apart", () => {
  const rows = [["a", "x"], ["a", "y"], ["b", "x"], ["a", "x"]].map(([dag_id, task_id]) => ({ dag_id, task_id, map_index: -1 }));
  assert.deepEqual([...alike(rows)], [rows[0], rows[3]]);
  assert.equal(alike([]).size, 0);
});

test("ticks are round and lie within", () => {
  assert.deepEqual(ticks(0, 240, 5), [0, 50, 100, 150, 200]);
  assert.deepEqual(ticks(0.1, 0.35, 3), [0.1, 0.2, 0.3]);
  assert.deepEqual(ticks(5, 5, 4), [5]);
});

test("a frame holds every point, and is logarithmic where only that shows the end", () => {
  const flat = frame([[0, 2], [10, 2]]);
  assert.ok(flat.low < 2 && flat.high > 2 && !flat.log);
  const steep = frame([[0, 1000], [10, 0.01]]);
  assert.ok(steep.log && steep.y(1000) >= 0 && steep.y(0.01) <= 10000);
  assert.ok(valueTicks(steep, 5).every((value) => value >= steep.low && value <= steep.high));
});

test("a path goes through its points", () => {
  assert.equal(path({ x: (x) => x, y: (y) => y }, [[0, 1], [2, 3]]), "M0 1L2 3");
});
