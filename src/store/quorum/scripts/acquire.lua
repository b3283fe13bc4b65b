-- acquire.lua: phase one. Takes this master for the token if nobody has it, or extends the lease it has.
-- ARGV: token, ttl ms, owner, attempt, longest lease ms.
-- Replies: {'granted', …, candidate} · {'busy', …, blocker…} · {'spent', …} · {'replica', …} · {'ageless', …}
--          {'young', …, ms until it counts}.
-- Why atomic: between seeing the lock free and taking it nobody may come in between.
-- The candidate is not remembered as a fence yet: only what a quorum agrees on is one (confirm.lua).

local token, ttl, owner, attempt = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
if redis.call('EXISTS', spent_key(token)) == 1 then return answer('spent') end
local why = unfit(tonumber(ARGV[5]))
if why then return why end
load(token)
expire()
if lock == 'free' then
  lock = 'held'
  hold = { token = token, cool = 0, confirmed = false, forced = false, attempt = 0, waited = '0', owner = owner,
    asked = '' }
end
if is_held_by(token) then
  if not hold.confirmed then
    hold.fence, hold.since = int(math.max(us, last_fence() + 1)), int(us)
  end
  hold['until'], hold.attempt = ms + ttl, math.max(hold.attempt, attempt)
  save_hold()
  return answer('granted', hold.fence)
end
return answer('busy', unpack(blocker()))
