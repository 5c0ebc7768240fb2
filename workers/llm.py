from dataclasses import dataclass
from orchestrator.models.values import Usage
@dataclass
class Reply: text:str; usage:Usage; model:str; finish_reason:str
def load(): pass
async def complete(model, messages, *, params={}, schema=None, timeout_s=60.):
    import asyncio; await asyncio.sleep(0.2)
    return Reply("echo "+messages[-1]["content"], Usage(input_tokens=5,output_tokens=6,model_calls=1), model, "stop")
