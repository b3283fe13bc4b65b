-- acquire.lua: phase one. Takes this master for the token if it is free, or extends the token's
-- lease.
-- Argument: as that of a single server's acquire.lua, with attempt in place of the last ones.
-- Replies: granted {fence}, a candidate · busy {ahead, seen}: `seen` is what blocks it, with the
--        holder's token · behind {ahead}: it is free, but others have waited longer · done {at,
--        success, ago, age, due} · superseded {at, by} · token-ended · and for a master that does not
--        count replica · ageless · young {counts_in (ms)}.
-- Why atomic: no other client may come between the check and the grant. The candidate is not
-- recorded as a fence yet: only the fence of a majority is one (confirm.lua).

local token, owner, waited = arg.token, arg.owner, arg.waited
local came = math.max(us - waited * 1000, 0)
local why = uncounted()
local lock = named(token)[1]
if redis.call('EXISTS', spent_key(lock, token)) == 1 then return answer('token-ended') end
if why then return why end
expire(lock)
local passes = arg.terms.during_pause or not pause_of(lock)
local ahead, is_mine, is_free = 0, is_held_by(lock, token), lock.kind == 'free' and passes
-- Once, not with each request of a waiter.
if not is_mine and waited == 0 then expect({ lock }, arg.terms.expect) end
-- Also if a first request that came late has taken this master: the run has arrived before that.
if not (is_mine and hold_of(lock, token).confirmed) then
  local was = done({ lock }, arg.terms, came)
  if was then
    if is_mine then drop_hold(lock, token) end
    tally(lock, { done = 1 })
    forget_turn(lock, token)
    return answer('done', was)
  end
end
if not is_mine then
  if arg.terms.replaces then
    local newest = superseded_by(lock, token, came)
    if newest then return answer('superseded', { at = 0, by = newest.owner }) end
    local old = be_newest(lock, token, came, owner)
    if old then forget_turn(lock, old.token) end
    local hold = lock.kind == 'exclusive' and hold_of(lock, lock.token)
    if hold and hold.confirmed and is_replaced(hold, came) and passes then
      hold.asked, hold.superseded = owner, true
      save(lock, lock.token, hold)
    end
  end
  local others, refused
  local turn = turn_of(lock, token, waited)
  ahead, others, refused = askers(lock, token, turn)
  local is_turn = ahead == 0 or refused and refused + FREE_FOR < ms
  is_mine = is_free and is_turn
  -- A caller that gets the lock at its first request leaves no entry.
  if arg.patience == 'queue' and others < ASKERS and (waited > 0 or not is_mine) then
    note_turn(lock, token, int(ms - turn) .. ':' .. int(ms))
  end
  if is_free and not is_turn and not refused then note_turn(lock, '#free', int(ms)) end
  if refused and lock.kind == 'exclusive' and hold_of(lock, lock.token).confirmed then forget_turn(lock, '#free') end
end
if not is_mine then
  if is_free then return answer('behind', { ahead = ahead }) end
  local seen = obstacle(lock)
  return answer('busy', { ahead = ahead, seen = arg.terms.during_pause and without_pause(seen) or seen })
end
if is_free then
  lock.kind, lock.token = 'exclusive', token
  lock.holds[token] = { phase = 'held', cool = 0, confirmed = false, attempt = '0', waited = 0, owner = owner,
    not_replaceable = arg.terms.not_replaceable, during_pause = pause_of(lock) and true or nil }
end
local hold = hold_of(lock, token)
if not hold.confirmed then
  hold.fence, hold.since, hold.waited = int(math.max(us, last_fence(lock) + 1)), int(us), waited
end
hold['until'] = ms + arg.ttl
if hold.attempt then hold.attempt = int(math.max(hold.attempt, arg.attempt)) end
save(lock, token, hold)
return answer('granted', { fence = hold.fence })
