/** An answer that may not be read any further. Its message is for whoever runs the target. */
export class AnswerFault extends Error {}
