/** Reads the text of server-sent events. Pure. */

/**
 * A makeParser of a stream's text: call it with each piece; it answers the messages that are whole, each {id, event, data}.
 * What is no field that we know, such as a comment, is passed over.
 */
export function makeParser() {
  let rest = "";
  let message = {};
  return (piece) => {
    const lines = (rest + piece).split(/\r\n|\n|\r(?!$)/);
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
