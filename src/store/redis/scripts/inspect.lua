-- inspect.lua: the views of locks (rules: Record::inspect). Writes nothing, so it works on a
-- replica and on a server that is out of memory. Ends that no operation has recorded yet are shown
-- as if they were.
-- Argument: ends (how many of the last ends to return; with 0 also not the last success).
-- Reply: a list of JSON texts: seen, then a text for each of the locks in the order of the request,
--        only as many as a short script can read, at least one: {state, mode, left, foreign, fence,
--        holders, waiters, log (JSON texts), stat, success, expected, paused}.
-- Why atomic: holders, queue and log of a lock are of one moment.

-- Limit for one script, because other clients wait meanwhile: 64 locks, each as much as 16 holds,
-- waiters or ends.
local ENOUGH = 1024

local function seen(lock)
  local log, stat, live, revoked, recorded, due = look(lock, arg.ends)
  local many = is_many(lock)
  if many and recorded > 0 and not due then lock.kind, lock['until'], many = 'free', nil, false end

  local view = { state = lock.kind, fence = number_in(redis.call('GET', lock.FENCE)), log = list(log), stat = stat,
    success = arg.ends > 0 and success_of(lock) or nil, expected = expected_of(lock) }
  local until_ms = lock['until']
  if lock.kind == 'exclusive' then
    view.state = #live > 0 and 'held' or 'cooling'
  elseif many then
    view.state = (#live > 0 or recorded == 0) and 'held' or #revoked > 0 and 'revoked' or 'cooling'
    until_ms = due or until_ms
  elseif lock.kind == 'foreign' then
    view.state, view.foreign = 'held', foreign(lock)
    view.left = view.foreign.left
  end
  if until_ms then view.mode, view.left = many and mode_to(lock.kind) or 'exclusive', left(until_ms) end
  view.holders = people(view.state == 'held' and live or view.state == 'revoked' and revoked or {})

  -- Most locks have neither queue nor pause.
  local waiters = {}
  if lock.paused or redis.call('EXISTS', key_of('pause', lock), lock.QUEUE) > 0 then
    view.paused = pause_of(lock)
    if view.state == 'free' and view.paused then view.state, view.left = 'paused', left(view.paused['until']) end
    for _, token in ipairs(redis.call('ZRANGE', lock.QUEUE, 0, -1)) do
      local w = object_at(waiter_key(lock, token)) or {}
      local since, stale = number_in(w.since), number_in(w.stale_at)
      if since and stale and type(w.owner) == 'table' and ms < stale_at(lock, stale) then
        local waiting, terms = math.max(ms - math.floor(since / 1000), 0), type(w.terms) == 'table' and w.terms or {}
        waiters[#waiters + 1] = { owner = w.owner, mode = mode_to(w.mode), replaces = terms.replaces == true,
          during_pause = terms.during_pause == true, waiting = waiting }
      end
    end
  end
  view.fence, view.waiters = view.fence and int(view.fence), list(waiters)
  return cjson.encode(view), recorded + #waiters + #log
end

local reply, told = { answer('seen') }, 0
for i = 1, #KEYS, PARTS do
  local one, weight = seen(lock_at(i))
  reply[#reply + 1] = one
  -- Lua's garbage collector would visit it again and again.
  book = {}
  told = told + 16 + weight
  if told >= ENOUGH then break end
end
return reply
