// The runbook: what an error code means, what stays safe, and what to do. It is in the worker, and needs no network.
import { Problem } from "./parts.js";
import { html, useEffect, useState } from "./ui.js";

export function ErrorPage({ code }) {
  const [known, setKnown] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => {
    fetch(new URL("errors.json", document.baseURI))
      .then((answer) => (answer.ok ? answer.json() : Promise.reject(answer)))
      .then(setKnown, () => setError({ message: "The worker does not answer. Load the page again." }));
  }, []);
  if (error) return html`<h1>${code}</h1><${Problem} error=${error} />`;
  if (!known) return html`<h1>${code}</h1><p class="loading" role="status">Loading …</p>`;
  const entry = Object.hasOwn(known, code) ? known[code] : null;
  if (!entry) return html`<h1>${code}</h1><${Problem} error=${{ message: "This worker does not know the code." }} />`;
  return html`<h1><code>${code}</code></h1>
    <section class="card"><p class="big">${entry.title}.</p>
      <h2>What to do</h2><p>${entry.hint}</p>
      <h2>What stays safe</h2><p>${entry.safe}</p>
      <h2>What kind of error it is</h2><p>${entry.kind}</p>
    </section>
    <p><a href="#/" onClick=${(event) => { event.preventDefault(); history.back(); }}>Back</a></p>`;
}
