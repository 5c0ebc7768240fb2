import sys,time,os
os.environ.setdefault("CANTATA_LOG_LEVEL","INFO")
from orchestrator.client import *
from orchestrator.models.definitions import *
from orchestrator.models.graph import *
open('/tmp/try/noop_tools.py','w').write("def noop(**k): return 1\n")
d=Definitions(folder='/tmp/try',tools={'noop':Tool(function='noop_tools:noop')},agents={'a':Agent(),'b':Agent(instructions=["x {input}","y {input}"])},
  teams={'p':Team(mode='pipeline',agents=['a','b','a']),'q':Team(mode='broadcast',agents=['a','b'],synthesizer=Synthesizer(prompt='merge {user_input}: {agent_responses}'))})
t=time.time()
import tempfile
with Client.embedded(tempfile.mkdtemp(), config=d) as c:
    print('stack up',time.time()-t, c.warnings, c.unserved_queues())
    def S(id,**k): return Step(id=id,kind='tool.call',queue='tools',work='tools:noop',params={'section':'tools','tool':'noop'},**k)
    def row(n): return Graph(steps=tuple(S(f's{i}') for i in range(n)),edges=tuple(Edge(source=f's{i}',target=f's{i+1}') for i in range(n-1)),terminals=(f's{n-1}',))
    def fan(n): return Graph(steps=(S('a'),*(S(f'm{i}') for i in range(n)),S('z')),edges=tuple(e for i in range(n) for e in (Edge(source='a',target=f'm{i}'),Edge(source=f'm{i}',target='z'))))
    def go(g,wait=True):
        t=time.perf_counter()
        r=c.submit_chain(ChainRequest(nodes=[],chain_id='x',initial_input={'graph':g.model_dump(mode='json',exclude_defaults=True)}))
        if wait:
            rec=r.wait(60); return (time.perf_counter()-t)*1e3, rec
        return r
    for name,g in (('row10',row(10)),('row100',row(100)),('fan100',fan(100)),('fan1000',fan(1000))):
        ts=[]
        for k in range(6):
            ms,rec=go(g); ts.append(round(ms,1)); assert rec.status=='succeeded',rec.error
        print(name,ts)
    g=row(10)
    for k in range(3):
        t=time.perf_counter(); rs=[go(g,False) for _ in range(50)]; t1=time.perf_counter()-t
        for r in rs: r.wait(60)
        print('50x10', 500/(time.perf_counter()-t), 'submit', t1)
    print(sum(c.redis.memory_usage(k) for k in c.redis.scan_iter(f'*{rs[0].run_id}*')),'bytes per run of 10')
    for team in 'pq':
        t=time.time(); r=c.submit_turn("hello",team=team); print(r.result(20), time.time()-t)
        for e in r.events(): print('  ',e.seq,e.type,e.step,e.attempt,e.worker,e.detail)
    print([ (p.name,p.pid) for p in c.stack.processes()])
    os.system('tail -5 %s/logs/*.log'%c.stack.home.path)
