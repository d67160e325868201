// The React of Airflow's own page: a second one would not share its hooks.
const React = globalThis.React;
export const h = (...args) => React.createElement(...args);
export const { Component, useCallback, useEffect, useMemo, useRef, useState } = React;
