import { useState } from "react";

import { publishPolicy, type Problem, type Publication } from "../api/rest";

export type PublishState =
  | { readonly phase: "idle" }
  | { readonly phase: "sending" }
  | { readonly phase: "done"; readonly revision: number }
  | { readonly phase: "failed"; readonly problem: Problem };

export function usePublish(): {
  state: PublishState;
  publish: (publication: Publication) => Promise<boolean>;
  clear: () => void;
} {
  const [state, setState] = useState<PublishState>({ phase: "idle" });
  const publish = async (publication: Publication): Promise<boolean> => {
    setState({ phase: "sending" });
    const answer = await publishPolicy(publication);
    setState(
      answer.ok ? { phase: "done", revision: answer.body.number } : { phase: "failed", problem: answer.problem },
    );
    return answer.ok;
  };
  return { state, publish, clear: () => setState({ phase: "idle" }) };
}
