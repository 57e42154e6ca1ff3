import { useState } from "react";

import { approveEngine } from "../api/rest";

/** Lets an enrolled engine take part; the card itself shows the new state when it arrives. */
export function ApproveButton({ engine }: { readonly engine: string }) {
  const [isSending, setIsSending] = useState(false);
  const [problem, setProblem] = useState("");
  const approve = async () => {
    setIsSending(true);
    const answer = await approveEngine(engine);
    setProblem(answer.ok ? "" : `${answer.problem.title}: ${answer.problem.detail}`);
    setIsSending(false);
  };
  return (
    <div className="approve">
      <p>It enrolled with a token that needs an operator's word. Until then it gets no traffic and no policy.</p>
      <button type="button" className="button" disabled={isSending} onClick={approve} aria-label={`Approve ${engine}`}>
        Approve
      </button>
      <p className="problem" role="status">
        {problem}
      </p>
    </div>
  );
}
