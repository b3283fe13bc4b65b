-- confirm.lua: phase two. Remembers the fence of the quorum, if this master is still the token's.
-- ARGV: token, fence, min-hold ms, longest lease ms, waited ms, its other terms (of 'replaces' and 'stays').
-- Replies: {'confirmed', …} · {'not-held', …}, and as acquire.lua's for a master that does not count.
-- Why atomic: compare and write. Every later quorum shares a master with the one that was told, and begins above it.

local token, fence, min_hold = ARGV[1], ARGV[2], tonumber(ARGV[3])
write_first()
local lock = named(token)[1]
expire(lock)
local why = unfit(tonumber(ARGV[4]))
if why then return why end
if not is_held_by(lock, token) then return answer('not-held') end
remember_fence(lock, fence)
forget_turn(lock, token, '#free')
local hold = hold_of(lock, token)
if not hold.confirmed then
  hold.waited = ARGV[5]
  confirm(lock, hold)
  -- Not from its own grant, which may have been well before that of the last master that was counted.
  if min_hold > 0 then hold.cool = ms + min_hold end
  -- One that came while this one was at it did not see it hold yet.
  local newest = string.find(ARGV[6], 'replaces', 1, true) and hold.word ~= 'stays' and newest_of(lock)
  if newest and newest.token ~= token then hold.asked, hold.word = newest.owner, 'superseded' end
end
-- Not the candidate of this master: that may be greater, if it was not one of those that were counted.
hold.fence = fence
save(lock, token, hold)
return answer('confirmed')
