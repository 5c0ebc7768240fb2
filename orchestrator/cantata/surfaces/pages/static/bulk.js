/** The same action on several things, a few at once; one that fails stops no other. */

const AT_ONCE = 4;

/** Call `act(item)` for each item; return {done, failed}: those that succeeded, and [item, error] of the others, in their order. */
export async function forEach(items, act) {
  const results = new Map();
  const left = [...items];
  const work = async () => {
    for (let item = left.shift(); item !== undefined; item = left.shift()) {
      results.set(item, await act(item).then(() => null, (error) => error));
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  return { done: items.filter((item) => !results.get(item)), failed: items.filter((item) => results.get(item)).map((item) => [item, results.get(item)]) };
}
