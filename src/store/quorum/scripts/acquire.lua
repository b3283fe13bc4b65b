-- acquire.lua: phase one. Takes this master for the token if nobody has it, or extends the lease it has.
-- ARGV: token, ttl ms, owner, attempt, longest lease ms.
-- Replies: {'granted', …, candidate} · {'busy', …, whose, blocker…} · {'spent', …} · {'replica', …} · {'ageless', …}
--          {'young', …, ms until it counts}.
-- Why atomic: between seeing the lock free and taking it nobody may come in between.
-- The candidate is not remembered as a fence yet: only what a quorum agrees on is one (confirm.lua).

local token, ttl, owner, attempt = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local why = unfit(tonumber(ARGV[5]))
local lock = named(token)[1]
if redis.call('EXISTS', spent_key(lock, token)) == 1 then return answer('spent') end
if why then return why end
expire(lock)
if lock.kind == 'free' then
  lock.kind, lock.token = 'exclusive', token
  lock.holds[token] = { phase = 'held', slot = '', cool = 0, confirmed = false, attempt = 0, waited = '0', owner = owner,
    asked = '' }
end
if not is_held_by(lock, token) then return answer('busy', obstacle(lock)) end
local hold = hold_of(lock, token)
if not hold.confirmed then
  hold.fence, hold.since = int(math.max(us, last_fence(lock) + 1)), int(us)
end
hold['until'] = ms + ttl
if hold.attempt then hold.attempt = math.max(hold.attempt, attempt) end
save(lock, token, hold)
return answer('granted', hold.fence)
