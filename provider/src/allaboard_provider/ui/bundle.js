var Q=globalThis.React,o=(...e)=>Q.createElement(...e),{Component:G,useEffect:N,useRef:V,useState:w}=Q;var O=(e,t,a)=>{if(!(t>e))return[e];let r=10**Math.floor(Math.log10((t-e)/a));for(let s of[1,2,5,10])if((t-e)/(r*s)<=a){r*=s;break}let n=[];for(let s=Math.ceil(e/r-1e-9);s*r<=t+r*1e-9;s++)n.push(+(s*r).toPrecision(12));return n},X=e=>{let t=Math.min(...e.map(([,s])=>s)),a=Math.max(...e.map(([,s])=>s)),r=t>0&&a/t>50;if(r)[t,a]=[t/1.15,a*1.15];else{let s=(a-t)*.06||Math.abs(a)*.1||1;[t,a]=[t>=0&&t<(a-t)*.5?0:t-s,a+s]}let n=s=>r?Math.log(Math.max(s,t)/t)/Math.log(a/t):(s-t)/(a-t);return{low:t,high:a,log:r,share:n,y:s=>Math.round(1e4*(1-n(s)))}},H=({low:e,high:t,log:a},r)=>{if(!a)return O(e,t,r);let n=m=>{let i=[];for(let l=Math.floor(Math.log10(e));l<=Math.ceil(Math.log10(t));l++)for(let c of m)c*10**l>=e&&c*10**l<=t&&i.push(c*10**l);return i};for(let m of[[1,2,5],[1,3],[1]]){let i=n(m);if(i.length<=r+1)return i}let s=n([1]),p=Math.ceil(s.length/r);return s.filter((m,i)=>i%p===0)},J=(e,t)=>t.map(([a,r],n)=>`${n?"L":"M"}${e.x(a)} ${e.y(r)}`).join("");var g=e=>{if(e==null)return"–";if(typeof e!="number")return String(e);let t=Math.abs(e);if(e&&t<.001)return e.toExponential(1).replace(".0e","e");for(let[a,r,n]of[[1e9,1e9,"G"],[1e6,1e6,"M"],[1e4,1e3,"k"]])if(t>=a)return String(+(e/r).toPrecision(4))+n;return String(+e.toPrecision(4))},I=e=>String(e).padStart(2,"0"),K=e=>{if(e==null)return"–";if(e<10)return`${e.toFixed(1)} s`;let t=Math.round(e);return t<60?`${t} s`:t<3600?`${Math.floor(t/60)}m ${I(t%60)}s`:t<86400?`${Math.floor(t/3600)}h ${I(Math.floor(t%3600/60))}m`:`${Math.floor(t/86400)}d ${I(Math.floor(t%86400/3600))}h`},M=(e,t)=>`${e.toLocaleString("en")} ${t}${e===1?"":"s"}`,$=e=>String(e).replaceAll("_"," "),h=(e=globalThis.localStorage)=>{try{let t=JSON.parse(e.getItem("timezone"));if(new Intl.DateTimeFormat("en",{timeZone:t??void 0}),t)return t}catch{}return Intl.DateTimeFormat().resolvedOptions().timeZone},j=(e,t=h())=>{if(e==null||!Number.isFinite(e))return"–";let a={timeZone:t,year:"numeric",month:"2-digit",day:"2-digit",hour:"2-digit",minute:"2-digit",second:"2-digit",hourCycle:"h23"},r=Object.fromEntries(new Intl.DateTimeFormat("en",a).formatToParts(e*1e3).map(({type:n,value:s})=>[n,s]));return`${r.year}-${r.month}-${r.day} ${r.hour}:${r.minute}:${r.second}`},_=(e,t=h())=>e?j(Date.parse(e)/1e3,t):"–",S=(e,t=h())=>e&&e.replace(/\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z/g,a=>`${_(a,t)} (${t})`),me={succeeded:"good",success:"good",failed:"bad",timed_out:"bad",lost:"bad",queued:"warning",suspended:"warning",restarting:"warning"},T=e=>me[e]??"calm",fe={LocalQueue:"queue of Kueue",Queue:"queue of Volcano",ResourceQuota:"quota"},ue={LocalQueue:"ClusterQueue",Queue:"queue"},Y=({kind:e,parent:t,where:a})=>[fe[e]??e,t&&`of ${ue[e]??""} ${t}`,a].filter(Boolean).join(", "),W=({used:e,limit:t})=>t>0?Math.min(1,e/t):1,q=({used:e,limit:t})=>e>=t,ee=e=>{let t=r=>`${r.dag_id} ${r.task_id} ${r.map_index}`,a=new Map;for(let r of e)a.set(t(r),(a.get(t(r))??0)+1);return new Set(e.filter(r=>a.get(t(r))>1))};var ge=e=>{let t=e.map(g);return new Set(t).size===t.length?t:e.map(a=>String(+a.toPrecision(8)))},he=e=>Math.min(1,Math.max(0,e)),te=(e,t)=>t.map(([a,r])=>`M${e.x(a)} ${e.y(r)}h0`).join(""),oe=({title:e,line:t,axis:a,star:r=null,name:n})=>{let s=V(null),[p,m]=w(null),{points:i}=t,{low:l,high:c}=a;if(!i.length)return null;let d=X(i);d.x=u=>Math.round(1e4*(u-l)/(c-l));let x=H(d,4),f=O(l,c,4),ce=`${t.name} from ${g(i[0][1])} to ${g(i[i.length-1][1])}`,de=u=>{let b=s.current.getBoundingClientRect(),P=l+he((u.clientX-b.left)/b.width)*(c-l),Z=i.reduce((B,U)=>Math.abs(B[0]-P)<=Math.abs(U[0]-P)?B:U);m({at:(Z[0]-l)/(c-l),near:Z})};return o("div",{className:"plot"},o("svg",{ref:s,viewBox:`0 0 ${1e4} ${1e4}`,preserveAspectRatio:"none",role:"img","aria-label":`${e}: ${ce}`,onPointerMove:de,onPointerLeave:()=>m(null)},o("path",{className:"grid",d:x.map(u=>`M0 ${d.y(u)}H${1e4}`).join("")}),i.length>1&&o("path",{className:"line s0",d:J(d,i)}),o("path",{className:"dots s0",d:te(d,i)}),r&&o("path",{className:"mark",d:`M${d.x(r[0])} 0V${1e4}`},o("title",null,"the champion")),r&&o("path",{className:"star",d:te(d,[r])})),x.map((u,b)=>o("i",{key:`y${b}`,className:"y",style:{bottom:`${100*d.share(u)}%`}},ge(x)[b])),f.map((u,b)=>o("i",{key:`x${b}`,className:"x",style:{left:`${100*(u-l)/(c-l)}%`}},n(u))),o("i",{className:"unit"},a.unit),p&&o("div",{className:"hair",style:{left:`${100*p.at}%`}}),p&&o("div",{className:"tip",style:p.at>.5?{right:`${100*(1-p.at)}%`}:{left:`${100*p.at}%`}},o("b",null,n(p.near[0])),o("span",{className:"key s0"},`${t.name} ${g(p.near[1])}`)))};var z=(...e)=>new URL(["allaboard",...e.map(t=>encodeURIComponent(t))].join("/"),document.baseURI).href,xe=async(e,t)=>{let a=await fetch(e,{signal:t,headers:{Accept:"application/json"},credentials:"same-origin"});if(a.ok)return a.json();let r={401:"you are signed out; sign in again",403:"you may not see the task instances of this DAG",404:"there is no such task instance"};throw new Error(r[a.status]??`the server answered ${a.status}`)},E=(e,t)=>{let[a,r]=w({value:null,error:null});return N(()=>{let n=new AbortController,s=null,p=!1;r({value:null,error:null});let m=async()=>{if(document.hidden){s=setTimeout(m,1e3);return}let i=15;try{let l=await xe(e,n.signal);i=t(l),p||r({value:l,error:null})}catch(l){if(p)return;r(c=>({...c,error:l.message}))}!p&&i!==null&&(s=setTimeout(m,i*1e3))};return m(),()=>{p=!0,clearTimeout(s),n.abort()}},[e]),a};var C=({title:e,aside:t=null,children:a})=>o("section",null,o("div",{className:"title"},o("h2",null,e),t),a),F=({heads:e,rows:t,align:a=[]})=>o("div",{className:"wide"},o("table",null,o("thead",null,o("tr",null,e.map((r,n)=>o("th",{key:n,className:a[n]??""},r)))),o("tbody",null,t.map((r,n)=>o("tr",{key:n},r.map((s,p)=>o("td",{key:p,className:a[p]??""},s))))))),ne=({children:e})=>o("p",{className:"fine"},e),y=({title:e,text:t})=>o("div",{className:"nothing"},o("b",null,e),o("p",null,t)),R=({tone:e,children:t})=>o("span",{className:`badge ${e}`},t);var be=4,A=12,re=({dagId:e})=>{let{value:t,error:a}=E(z("api","dag",e,"models"),()=>30);return t===null?a?o(y,{title:"This cannot be shown",text:`${a}.`}):o("p",{className:"fine loading"},"Loading …"):!t.runs.length&&!t.promotions.length?o(y,{title:"No models here yet",text:"Once a task of this DAG trains, evaluates or promotes with allaboard, its metrics show here, one DAG run after another."}):o("article",null,o("header",{className:"calm"},o("p",{className:"kicker"},"models"),o("h1",null,t.dag_id),o("p",{className:"lead"},`${M(t.runs.length,"run")} of trainings and evaluations, ${M(t.promotions.length,"promotion")}`)),t.champions.map(r=>o($e,{key:r.store,one:r})),o(we,{value:t}),o(ke,{value:t}),o(ve,{value:t}),t.notes.length>0&&o("ul",{className:"fine"},t.notes.map((r,n)=>o("li",{key:n},S(r)))))},ae=e=>new Set(e.champions.map(t=>t.run)),$e=({one:e})=>o("div",{className:"reason good"},o("h3",null,`★ The champion: ${e.run??e.checkpoint}`),o("p",null,[`promotion ${e.number} of ${e.store}`,e.step!==null&&`step ${e.step}`,e.metric!==null&&`${e.metric_name??"metric"} ${g(e.metric)}`,e.at&&`since ${_(e.at)}`,e.restores!==null&&`a rollback to promotion ${e.restores}`].filter(Boolean).join(", "),"."),o("p",{className:"fine"},o("code",null,e.checkpoint))),we=({value:e})=>{let t=[...new Set(e.runs.map(i=>i.dag_run))],a=[...new Set(e.runs.map(i=>i.task_id))],r=ae(e),n=new Set(e.runs.filter(i=>r.has(i.run)).map(i=>i.dag_run)),s=[];for(let i of a)for(let l of e.metrics){let c=e.runs.filter(d=>d.task_id===i&&typeof d.metrics[l]=="number");c.length&&s.push({task:i,name:l,found:c})}if(!s.length)return null;let p={unit:"DAG run, oldest first",low:t.length>1?1:0,high:Math.max(2,t.length)},m=i=>t.indexOf(i.dag_run)+1;return o(C,{title:"From run to run"},o("div",{className:"pair"},s.slice(0,A).map(({task:i,name:l,found:c})=>{let d=c.map(f=>[m(f),f.metrics[l]]),x=c.find(f=>n.has(f.dag_run));return o("figure",{key:`${i} ${l}`,className:"small"},o("figcaption",null,o("b",null,$(l),o("span",{className:"fine"},` of ${i}`)),o("span",{className:"value"},g(d[d.length-1][1]))),o(oe,{title:`${l} of ${i}`,line:{name:l,points:d},axis:p,star:x?[m(x),x.metrics[l]]:null,name:f=>Number.isInteger(f)&&f>0?`#${f}`:""}))})),s.length>A&&o(ne,null,`${M(s.length-A,"more metric")} left out here.`))},ke=({value:e})=>e.promotions.length>0&&o(C,{title:"Promotions and rollbacks"},o(F,{heads:["",`when (${h()})`,"what","run","step","metric","by"],rows:e.promotions.map(t=>[`${t.number}${e.champions.some(a=>a.store===t.store&&a.number===t.number)?" ★":""}`,_(t.at),t.restores===null?"promoted":o("span",{className:"warning"},`rolled back to ${t.restores}`),t.run??"–",t.step??"–",g(t.metric),t.by??"–"])})),ve=({value:e})=>{let t=e.metrics.slice(0,be),a=[...new Set(e.runs.map(n=>n.dag_run))],r=e.runs.some(n=>n.point);return e.runs.length>0&&o(C,{title:"Runs"},o(F,{heads:["",`due (${h()})`,"task",...r?["values"]:[],"run","state",...t.map($),"took","promotion"],rows:[...e.runs].reverse().map(n=>[`#${a.indexOf(n.dag_run)+1}`,j(n.after),o("a",{href:L(e.dag_id,n)},n.map_index>=0?`${n.task_id} [${n.map_index}]`:n.task_id),...r?[n.point||"–"]:[],o("span",{className:"name"},n.run),n.state?o(R,{tone:T(n.state)},$(n.state)):$(n.task_state??"–"),...t.map(s=>g(n.metrics[s])),K(n.seconds),n.promotion===null?"–":`${n.promotion}${ae(e).has(n.run)?" ★":""}`])}))},L=(e,{dag_run:t,run_id:a,task_id:r,map_index:n})=>{let s=encodeURIComponent,p=n>=0?`/mapped/${n}`:"";return new URL(`dags/${s(e)}/runs/${s(t??a)}/tasks/${s(r)}${p}/plugin/allaboard`,document.baseURI).href};var se=()=>{let{value:e,error:t}=E(z("api","now"),()=>10);if(e===null)return t?o("div",{className:"card"},o("h2",null,"Trainings"),o("p",{className:"fine"},`They cannot be shown: ${t}.`)):null;let a=ee(e.runs),r=e.runs.filter(n=>n.held_by).length;return o("div",{className:"card"},o("div",{className:"title"},o("h2",null,"Trainings"),o("span",{className:"fine"},e.runs.length?`${e.runs.length-r} running, ${r} waiting`:"")),e.runs.length===0&&o("p",{className:"fine"},"Nothing trains now."),e.runs.map(n=>o("a",{key:`${n.dag_id} ${n.run_id} ${n.task_id} ${n.map_index}`,className:"row",href:L(n.dag_id,n)},o("span",{className:"what"},o("b",null,n.dag_id),` ${n.task_id}`,n.map_index>=0&&` [${n.map_index}]`,a.has(n)&&o("span",{className:"fine"},` ${n.run_id}`)),o(R,{tone:T(n.state)},$(n.state??n.task_state??"unknown")),o("span",{className:"how"},S(n.held_by??n.note)??n.how),n.share!==null&&o("span",{className:"progress"},o("i",{style:{width:`${100*Math.min(1,n.share)}%`}})))),e.queues.map(n=>o(ye,{key:`${n.server} ${n.where} ${n.kind} ${n.name}`,...n})))},ye=e=>o("section",{className:"queue"},o("div",{className:"title"},o("span",{title:e.server??void 0},o("b",null,e.kind==="machine"?"This machine":e.name),e.kind!=="machine"&&o("span",{className:"fine"},` ${Y(e)}`)),o("span",{className:"fine"},e.running!==null&&`${e.running} running, ${e.waiting??0} waiting`)),e.closed&&o("p",{className:"fine bad"},`Closed: ${e.closed}`),o("div",{className:"meters"},e.amounts.map(t=>o("div",{key:`${t.resource} ${t.flavor}`,className:"meter"},o("span",null,t.resource,t.flavor&&` (${t.flavor})`),o("span",null,t.words),t.limit!==null&&o("div",{className:"progress"},o("i",{className:q(t)?"full":"",style:{width:`${100*W(t)}%`}}))))));var ie=`/* The look of the pages that \`allaboard report\` writes (core/src/allaboard/report/page.css), inside of Airflow's. */
.allaboard {
  --ink: #1c2430; --soft: #5b6676; --line: #e3e8ee; --axis: #aab4c0; --paper: #fff; --card: #f5f7fa;
  --good: #0b7a4b; --bad: #b3261e; --warn: #8a5a00; --calm: #475569;
  --s0: #2563c9; --s1: #d9731a;
  color: var(--ink); font-size: 15px; line-height: 1.5; /* in the letters of the pages around it */
  container-type: inline-size; box-sizing: border-box; height: 100%; overflow-y: auto; overflow-wrap: anywhere;

  .dark & {
    --ink: #e6eaf0; --soft: #9aa6b6; --line: #2f3945; --axis: #5b6676; --paper: #161c27; --card: #212938;
    --good: #4cc38a; --bad: #ff8078; --warn: #e5b454; --calm: #a8b3c2;
    --s0: #6ea8ff; --s1: #f5a35c;
  }
  & *, & *::before { box-sizing: border-box; }
  & article { max-width: 1060px; margin: 0 auto; padding: 18px 20px 40px; }
  & .good { color: var(--good); }
  & .bad { color: var(--bad); }
  & .calm { color: var(--calm); }
  & .warning { color: var(--warn); }
  & .fine { color: var(--soft); font-size: 13px; margin: 6px 0; }
  & .loading { padding: 24px; }
  & .nothing { max-width: 560px; margin: 12vh auto 0; padding: 0 20px; text-align: center; color: var(--soft); }
  & .nothing b { color: var(--ink); font-size: 17px; font-weight: 600; }
  & .nothing p { margin: 8px 0; }
  & code { font: 12.5px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; background: none; }
  & ul { margin: 6px 0; padding-left: 20px; list-style: disc; }
  & a { color: var(--s0); }
  & a:hover { text-decoration: underline; }

  & header { border-left: 5px solid currentColor; padding-left: 16px; margin-bottom: 18px; }
  & header > * { color: var(--ink); }
  & .kicker { margin: 0; color: var(--soft); font-size: 12px; letter-spacing: .08em; text-transform: uppercase; }
  & .lead { margin: 4px 0 0; color: var(--soft); }
  & h1 { margin: 2px 0; font-size: 24px; line-height: 1.2; font-weight: 650; }
  & h2 { margin: 0; font-size: 16px; font-weight: 650; }
  & h3 { margin: 0 0 4px; font-size: 15px; font-weight: 600; }
  & .title { display: flex; flex-wrap: wrap; align-items: baseline; justify-content: space-between; gap: 4px 16px; margin: 28px 0 10px; }
  & .badge {
    display: inline-block; vertical-align: middle; padding: 1px 9px; font-size: 12px; font-weight: 600; line-height: 1.5;
    border: 1px solid currentColor; border-radius: 99px; white-space: nowrap;
  }

  & .progress { display: block; height: 6px; margin: 0 0 12px; background: var(--line); border-radius: 3px; overflow: hidden; }
  & .progress i { display: block; height: 100%; background: var(--s0); }

  & .reason { margin: 0 0 12px; padding: 12px 16px; background: var(--card); color: var(--ink); border-left: 4px solid var(--warn); border-radius: 0 10px 10px 0; }
  & .reason.good { border-color: var(--good); }
  & .reason p { margin: 4px 0 0; }

  & figure { margin: 0; min-width: 0; }
  & .pair { display: grid; grid-template-columns: repeat(auto-fill, minmax(250px, 1fr)); gap: 10px 28px; margin-top: 10px; }
  & figcaption { display: flex; flex-wrap: wrap; align-items: baseline; gap: 0 16px; font-size: 13px; color: var(--soft); min-height: 20px; }
  & figcaption b { color: var(--ink); font-weight: 600; }
  & figcaption b .fine { font-weight: 400; }
  & .small figcaption { justify-content: space-between; }
  & .value { color: var(--ink); font-variant-numeric: tabular-nums; }
  & .key { white-space: nowrap; }
  & .key::before { content: ""; display: inline-block; width: 9px; height: 9px; margin-right: 6px; border-radius: 2px; background: var(--c); }
  & .s0 { --c: var(--s0); }
  & .plot { position: relative; height: 130px; margin: 8px 8px 42px 46px; font-size: 11px; color: var(--soft); }
  & .plot svg { position: absolute; inset: 0; width: 100%; height: 100%; overflow: visible; touch-action: pan-y; border-bottom: 1px solid var(--axis); }
  & .plot i { position: absolute; font-style: normal; font-variant-numeric: tabular-nums; white-space: nowrap; line-height: 1; pointer-events: none; }
  & .plot .y { right: 100%; margin-right: 8px; transform: translateY(50%); }
  & .plot .x { top: 100%; margin-top: 7px; transform: translateX(-50%); }
  & .plot .unit { top: 100%; right: 0; margin-top: 23px; }
  & .plot path { fill: none; vector-effect: non-scaling-stroke; }
  & .grid { stroke: var(--line); }
  & .line { stroke: var(--c); stroke-width: 1.8; stroke-linejoin: round; }
  & .dots { stroke: var(--c); stroke-width: 6; stroke-linecap: round; }
  & .star { stroke: var(--ink); stroke-width: 13; stroke-linecap: round; stroke-opacity: .28; }
  & .mark { stroke: var(--good); opacity: .75; }
  & .hair { position: absolute; top: 0; bottom: 0; width: 0; border-left: 1px solid var(--soft); pointer-events: none; }
  & .tip {
    position: absolute; top: 6px; z-index: 2; margin: 0 10px; padding: 6px 10px; display: grid; gap: 2px; pointer-events: none;
    color: var(--ink); background: var(--paper); border: 1px solid var(--line); border-radius: 6px;
    font-size: 12px; font-variant-numeric: tabular-nums; box-shadow: 0 2px 10px rgb(0 0 0 / .12);
  }

  & .wide { overflow-x: auto; }
  & table { width: 100%; border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
  & th { text-align: left; white-space: nowrap; color: var(--soft); font-size: 12px; font-weight: 500; }
  & th, & td { padding: 5px 16px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; overflow-wrap: normal; }
  & td code { display: inline-block; min-width: 16em; overflow-wrap: anywhere; }
  & td .name, & td:first-child { white-space: nowrap; }

  & .card { padding: 14px 18px; margin: 12px 0; border: 1px solid var(--line); border-radius: 10px; }
  & .card .title { margin: 0 0 6px; }
  & .card .row { display: grid; grid-template-columns: minmax(140px, 1fr) 88px minmax(160px, 2fr); gap: 4px 14px; align-items: baseline; padding: 6px 0; border-top: 1px solid var(--line); color: var(--ink); text-decoration: none; font-size: 14px; }
  & .card .row:hover { background: var(--card); }
  & .card .badge { justify-self: start; }
  & .card .how { color: var(--soft); font-size: 13px; }
  & .card .row .progress { grid-column: 1 / -1; margin: 2px 0; height: 4px; }
  & .queue { padding: 8px 0 2px; border-top: 1px solid var(--line); font-size: 14px; }
  & .queue .title { margin: 0 0 4px; }
  & .meters { display: grid; grid-template-columns: repeat(auto-fill, minmax(190px, 1fr)); gap: 4px 28px; }
  & .meter { display: grid; grid-template-columns: 1fr auto; column-gap: 10px; font-size: 13px; color: var(--soft); font-variant-numeric: tabular-nums; }
  & .meter .progress { grid-column: 1 / -1; margin: 2px 0 6px; height: 5px; }
  & .progress i.full { background: var(--s1); }

  @container (max-width: 640px) {
    & article { padding: 12px 12px 32px; }
    & td { white-space: nowrap; }
    & .card .row { grid-template-columns: 1fr auto; }
    & .card .badge { justify-self: start; }
    & .card .how { grid-column: 1 / -1; }
  }
}
.allaboard:has(.card) { height: auto; overflow: visible; }
`;var le="allaboard-style";if(!document.getElementById(le)){let e=document.createElement("style");e.id=le,e.textContent=ie,document.head.append(e)}var D=class extends G{state={error:null};static getDerivedStateFromError(t){return{error:t}}render(){return this.state.error?o(y,{title:"This cannot be drawn",text:String(this.state.error)}):this.props.children}},Me=()=>{let[,e]=w(h());N(()=>{let t=()=>e(h()),a=["storage","local-storage"];for(let r of a)addEventListener(r,t);return()=>a.forEach(r=>removeEventListener(r,t))},[])},pe=e=>t=>(Me(),o("div",{className:"allaboard"},o(D,null,o(e,t))));globalThis.Models=pe(re);globalThis.Trainings=pe(se);
