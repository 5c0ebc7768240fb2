/** Requests of runs: their input, and the `submit` command that sends them again. Pure. */

import { parse } from "./json.js";

const OURS = new Set(["forked_from", "forked_at", "started_by", "webhook_of", "requested_by", "schedule", "scheduled_at", "escalated_to", "batch"]); // labels that Cantata gives

/** Return the node of a run that is one workflow in Python, or undefined. */
function workflowOf({ kind, request }) {
  const [node, ...others] = kind === "chain" ? request.nodes : [];
  return node?.kind === "workflow" && !others.length && !Object.keys(request.initial_input ?? {}).length ? node : undefined;
}

/** Return the input of a run that a fork may change: the text of a turn, the JSON of a chain or workflow; null if there is none. */
export function inputOf(run) {
  if (run.cut || typeof run.request !== "object" || !["turn", "chain"].includes(run.kind)) return null;
  if (run.kind === "turn") return run.request.text;
  return JSON.stringify((workflowOf(run) ?? { input: run.request.initial_input }).input ?? {}, null, 2);
}

/** Return whether a fork from a step can change the input: a workflow in Python gets its arguments at the start only. */
export function takesInput(run, step) {
  return inputOf(run) !== null && (step === "@start" || !workflowOf(run));
}

/** Return the changes of a fork for an edited input; raises an Error for JSON that is not valid. */
export function changesOf(run, text) {
  if (text === inputOf(run)) return {};
  if (run.kind === "turn") return { input: text };
  try {
    return { input: parse(text) };
  } catch (error) {
    throw new Error(`The input is not valid JSON: ${error.message}`);
  }
}

const USUAL_WORKFLOW_S = 30 * 86400; // of a workflow without a time limit of its own
const CONTROL = /[\x00-\x08\x0b-\x1f\x7f-\x9f]/; // a terminal may execute what is pasted with them

/** Return the command that submits the request of a run again; "" if the page does not have the whole request, or it cannot be pasted safely. */
export function commandOf(run) {
  const command = inputOf(run) === null ? "" : written(run);
  return CONTROL.test(command) ? "" : command;
}

function written(run) {
  const { request } = run;
  const labels = Object.entries(run.labels ?? {}).filter(([name]) => !OURS.has(name)).map(([name, text]) => ["--label", `${name}=${text}`]);
  const workflow = workflowOf(run);
  if (run.kind === "turn") {
    const named = ["team", "agent", "workflow", "session"].filter((name) => request[name]).map((name) => [`--${name}`, request[name]]);
    const more = [...(request.send_history ? [["--history"]] : []), ...(request.webhooks ?? []).map((each) => ["--webhook", each])];
    const time = request.timeout_s ? [["--timeout", String(request.timeout_s)]] : [];
    if (request.text === "-") return ""; // it would be read from standard input
    return words(["submit", "turn", ...[...named, ...time, ...more, ...labels].flat(), "--", request.text]);
  }
  const others = ["retry", "timeout", "input_map"].some((name) => workflow?.[name] && JSON.stringify(workflow[name]) !== "{}");
  if (workflow && !others) {
    const input = Object.keys(workflow.input ?? {}).length ? ["--input", JSON.stringify(workflow.input)] : [];
    const time = request.timeout && request.timeout !== USUAL_WORKFLOW_S ? ["--timeout", String(request.timeout)] : [];
    const posts = (request.webhooks ?? []).flatMap((each) => ["--webhook", each]);
    return words(["submit", "workflow", workflow.name, ...input, ...time, ...posts, ...labels.flat()]);
  }
  return `${words(["submit", "chain", "-", ...labels.flat()])} <<'END'\n${JSON.stringify(request, null, 2)}\nEND`;
}

function words(parts) {
  return parts.map((part) => (/^[\w@%+=:,./-]+$/.test(part) ? part : `'${part.replaceAll("'", "'\\''")}'`)).join(" ");
}
