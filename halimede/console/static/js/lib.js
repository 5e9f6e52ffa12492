// The view library with its template strings, in one place.
import { h, render, Fragment } from "preact";
import htm from "htm";

export { useEffect, useLayoutEffect, useMemo, useRef, useState, useCallback } from "preact/hooks";
export { h, render, Fragment };
export const html = htm.bind(h);
