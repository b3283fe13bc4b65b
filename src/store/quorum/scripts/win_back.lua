-- win_back.lua: gives this master to a hold that lives on the others, with its fence. Sent before the hold's deadline
-- only, after one of them has vouched for it.
-- ARGV: token, ttl ms, longest lease ms, fence, since us, cooling left ms, owner.
-- Replies: {'won', …} · {'not-held', …}, and as acquire.lua's for a master that does not count.
-- Why atomic: compare and take. A greater fence is that of a later grant: then the hold is over, whatever it believes.

local token, ttl, fence, since, cooling, owner =
  ARGV[1], tonumber(ARGV[2]), ARGV[4], ARGV[5], tonumber(ARGV[6]), ARGV[7]
write_first()
load(token)
expire()
local why = unfit(tonumber(ARGV[3]))
if why then return why end
if lock == 'free' and redis.call('EXISTS', spent_key(token)) == 0 and last_fence() <= tonumber(fence) then
  lock = 'held'
  hold = { token = token, fence = fence, since = since, cool = cooling > 0 and ms + cooling or 0, confirmed = true,
    forced = false, attempt = NO_ATTEMPT, waited = '0', owner = owner, asked = '' }
elseif not is_held_by(token) then
  return answer('not-held')
end
remember_fence(fence)
hold['until'] = ms + ttl
save_hold()
return answer('won')
