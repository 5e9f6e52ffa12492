// The configurations of many models, for pages that compare them.

import { useEffect, useState } from "./lib.js";
import { getJson, modelPath } from "./api.js";

const AT_ONCE = 6;

/** By model, null if it cannot be read. @type {Map<string, any>} */
const known = new Map();
const readers = new Set();

/** Reads a model's configuration again, or those of all models: it was loaded with another, or the server restarted. */
export function forgetConfigs(name = "") {
  if (name) known.delete(name);
  else known.clear();
  for (const read of readers) read();
}

/**
 * Reads the configurations of models, a few at a time.
 * @param {string[]} names
 * @returns {{configs: Map<string, any>, done: boolean}}
 */
export function useConfigs(names) {
  const [, setRead] = useState(0);
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const again = () => setTurn((n) => n + 1);
    readers.add(again);
    return () => void readers.delete(again);
  }, []);
  useEffect(() => {
    let gone = false;
    const left = names.filter((name) => !known.has(name));
    const work = async () => {
      for (let name = left.shift(); name !== undefined && !gone; name = left.shift()) {
        try {
          known.set(name, await getJson(`${modelPath(name)}/config`));
        } catch {
          known.set(name, null);
        }
        if (!gone) setRead((n) => n + 1);
      }
    };
    Array.from({ length: AT_ONCE }, work);
    return () => {
      gone = true;
    };
  }, [names.join("\n"), turn]);
  return { configs: known, done: names.every((name) => known.has(name)) };
}
