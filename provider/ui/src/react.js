// The React of Airflow's own page: a second one would not share its hooks.
const React = globalThis.React;
export const h = (...args) => React.createElement(...args);
export const { Component, useEffect, useRef, useState } = React;
