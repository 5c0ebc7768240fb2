/** Confirmation of actions that cannot be undone. */

import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";

/** A button that asks `question` and then calls `act`, which may raise; `children` are its label. With a reason in `refused` it is disabled. */
export function Confirmed({ question, explained, yes, no = "No, leave it", act, body, refused = "", className = "", children }) {
  const box = useRef(null);
  const [isOpen, setOpen] = useState(false);
  const [fault, setFault] = useState(null);
  const [isBusy, setBusy] = useState(false);
  useEffect(() => {
    if (isOpen && !box.current.open) box.current.showModal();
  }, [isOpen]);
  const confirm = async () => {
    setBusy(true);
    setFault(null);
    try {
      await act();
      box.current?.close();
    } catch (error) {
      setFault(error);
    }
    setBusy(false);
  };
  if (refused) return html`<span class="buttons"><button type="button" disabled title=${refused}>${children}</button>
    <span class="muted" role="note">${refused}</span></span>`;
  return html`<button type="button" class=${className} onClick=${() => { setFault(null); setOpen(true); }}>${children}</button>
    ${isOpen && html`<dialog ref=${box} onClose=${() => setOpen(false)} aria-label=${question}>
      <h2>${question}</h2>
      <p>${explained}</p>
      ${body}
      ${fault && html`<p class="fault" role="alert">${fault.message}</p>`}
      <div class="buttons"><button type="button" autofocus=${!body} onClick=${() => box.current.close()}>${no}</button>
        <button type="button" class=${className || "primary"} disabled=${isBusy} onClick=${confirm}>${yes}</button></div>
    </dialog>`}`;
}
