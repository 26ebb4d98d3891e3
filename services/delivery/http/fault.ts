/** An answer cannot be read any further. The message is for the owner of the target. */
export class AnswerFault extends Error {}
