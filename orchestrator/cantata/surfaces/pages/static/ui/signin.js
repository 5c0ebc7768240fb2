/** Form for the token. It is stored until the tab is closed, and is sent only to the API. */

import { html, useEffect, useRef } from "../vendor/htm-preact.js";
import { keepToken } from "../settings.js";

/** The form; `wasRefused` if the last token was unknown. */
export function SignIn({ wasRefused, onDone }) {
  const field = useRef(null);
  useEffect(() => field.current.focus(), []);
  const done = (event) => {
    event.preventDefault();
    const given = field.current.value.trim();
    if (!given) return;
    keepToken(given);
    onDone();
  };
  return html`<main id="main" class="sign-in" tabindex="-1">
    <h1>Sign in</h1>
    <p class="muted">These pages show the runs of the token's tenant, and to an operator those of all. The token is stored until this tab is closed.</p>
    ${wasRefused && html`<p class="fault" role="alert">This token is unknown.</p>`}
    <form onSubmit=${done}>
      <label for="token">Token</label>
      <input id="token" ref=${field} type="password" autocomplete="off" required />
      <button type="submit" class="primary">Sign in</button>
    </form>
  </main>`;
}
