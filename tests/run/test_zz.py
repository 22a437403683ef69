import os
import run.test_layer_norm_moves as base
from run.test_layer_norm_moves import free_moves, inner_moves, recognise, Alignment, norm_stages, run_apply, Output, relative, outputs
def test_zz(toy, tmp_path):
    name=os.environ["ZZ"]
    first=toy(name); model=recognise(first.folder)
    g=free_moves(model)
    out=[]
    for key,c in g.elements.items():
        h=Alignment(g.spec,{key:c}) 
        key0=key.rpartition(":")[2]
        h=Alignment.of(norm_stages(g.spec,{key0:c}),g.spec)
        run_apply(h, model, Output(tmp_path/"t", overwrite=True))
        d=relative(outputs(tmp_path/"t"), first.reference)
        if d>1e-8: out.append((key0,d))
    i=inner_moves(model,2)
    for key,c in i.elements.items():
        run_apply(Alignment(i.spec,{key:c}), model, Output(tmp_path/"t", overwrite=True))
        d=relative(outputs(tmp_path/"t"), first.reference)
        if d>1e-8: out.append((key,d))
    for o in out: print(o)
    print(len(g.elements), sorted(g.elements)[:0])
