-- Finds delivered or failed rows, or those that are not, within one piece of a bitmap.
-- Given: {part: delivered or failed, bit: 0 or 1, start, stop: the row behind the last, most}. Replies {where to go on, row, ...}.
local piece = math.floor(given.start / PIECE)
local bits = redis.call('GET', B .. ':' .. given.part .. ':' .. piece) or ''
local row, stop, found = given.start, math.min(given.stop, (piece + 1) * PIECE), {}
local other = given.bit == 1 and 0 or 255 -- a byte without a row to find
while row < stop and #found < given.most do
  local at = row % PIECE
  local byte = string.byte(bits, math.floor(at / 8) + 1) or 0
  if byte == other then
    row = row - at % 8 + 8
  else
    if math.floor(byte / 2 ^ (7 - at % 8)) % 2 == given.bit then found[#found + 1] = row end
    row = row + 1
  end
end
return {math.min(row, stop), unpack(found)}
