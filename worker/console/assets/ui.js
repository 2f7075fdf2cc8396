// Preact with htm: templates as tagged strings. Text in them is always set as text, never as markup.
import { h, render, Fragment } from "./vendor/preact.js";
import { useEffect, useMemo, useRef, useState, useId, useCallback } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";

export const html = htm.bind(h);
export { h, render, Fragment, useEffect, useMemo, useRef, useState, useId, useCallback };
