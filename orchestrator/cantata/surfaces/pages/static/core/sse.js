/** Parser of server-sent events. Pure. */

/**
 * Make a parser of a stream's text: call it with each chunk; it returns the complete messages, each {id, event, data}.
 * Unknown fields and comments are skipped.
 */
export function makeParser() {
  let rest = "";
  let message = {};
  return (chunk) => {
    const lines = (rest + chunk).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    const found = [];
    for (const line of lines) {
      if (line) {
        setField(message, line);
      } else {
        if (message.data !== undefined) found.push(message);
        message = {};
      }
    }
    return found;
  };
}

function setField(message, line) {
  const colon = line.indexOf(":");
  const name = colon < 0 ? line : line.slice(0, colon);
  const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
  if (name === "data") message.data = message.data === undefined ? value : `${message.data}\n${value}`;
  else if (name === "id" || name === "event") message[name] = value;
}
